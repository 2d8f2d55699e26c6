# `cpack -G DEB` makes three packages: paceline, the program; libpaceline-dev, to build against paceline::core; and
# libpaceline-train-dev, to build against paceline::train. Shared libraries that the program needs are found by
# dpkg-shlibdeps; what is needed to link against the static ones stands here.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME paceline)
set(CPACK_PACKAGE_CONTACT "The Paceline developers <paceline@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Data-parallel training for libtorch")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENTS_ALL program core)
if(PACELINE_TRAIN)
  list(APPEND CPACK_COMPONENTS_ALL train)
endif()

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME paceline)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Starts and measures data-parallel jobs: the program paceline.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_CORE_PACKAGE_NAME libpaceline-dev)
set(CPACK_COMPONENT_CORE_DESCRIPTION "Collectives between processes: headers, static library, CMake package.")
set(CPACK_DEBIAN_CORE_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CORE_PACKAGE_DEPENDS
    "libfmt-dev, libhwy-dev, libxxhash-dev, libssl-dev, pkg-config, paceline (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_TRAIN_PACKAGE_NAME libpaceline-train-dev)
set(CPACK_COMPONENT_TRAIN_DESCRIPTION "Data-parallel training of libtorch modules: headers, static library, a template.")
set(CPACK_DEBIAN_TRAIN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TRAIN_PACKAGE_DEPENDS
    "libtorch-dev, libopenblas0-pthread, libpaceline-dev (= ${PROJECT_VERSION})")
include(CPack)
