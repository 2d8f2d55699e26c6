# What `cmake --install` puts where, in three components: the program, what builds against paceline::core, and what
# builds against paceline::train.
include(CMakePackageConfigHelpers)
# Tests and benchmarks need not be built for it.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(paceline_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/paceline)

# All headers of ours that `header` includes, itself among them: what a user may include is what comes along.
function(paceline_add_headers list header)
  if(header IN_LIST ${list})
    return()
  endif()
  list(APPEND ${list} ${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include \"paceline/")
  foreach(include ${includes})
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" include "${include}")
    paceline_add_headers(${list} ${include})
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

function(paceline_install_headers component)
  foreach(header ${ARGN})
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT ${component})
  endforeach()
endfunction()

# paceline_install_library(TARGET COMPONENT): as paceline::COMPONENT.
function(paceline_install_library target component)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${component})
  install(TARGETS ${target} EXPORT paceline-${component} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          COMPONENT ${component})
  install(EXPORT paceline-${component} FILE paceline-${component}-targets.cmake NAMESPACE paceline::
          DESTINATION ${paceline_cmake_dir} COMPONENT ${component})
endfunction()

install(TARGETS paceline RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)

set(core_headers "")
foreach(header comm/comm.h comm/run_ranks.h data/sampler.h observe/recorder.h observe/report.h observe/summary.h)
  paceline_add_headers(core_headers paceline/${header})
endforeach()
paceline_install_headers(core ${core_headers})
paceline_install_library(paceline_core core)
configure_package_config_file(cmake/paceline-config.cmake.in paceline-config.cmake
                              INSTALL_DESTINATION ${paceline_cmake_dir})
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(paceline-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/paceline-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/paceline-config-version.cmake
        DESTINATION ${paceline_cmake_dir} COMPONENT core)

if(PACELINE_TRAIN)
  set(train_headers "")
  paceline_add_headers(train_headers paceline/paceline.h)
  list(REMOVE_ITEM train_headers ${core_headers})
  paceline_install_headers(train ${train_headers})
  paceline_install_library(paceline_train train)
  install(FILES cmake/torch.cmake cmake/openblas.cmake DESTINATION ${paceline_cmake_dir} COMPONENT train)
  install(DIRECTORY examples/template DESTINATION ${CMAKE_INSTALL_DATADIR}/paceline COMPONENT train)
endif()
