# paceline_torch: libtorch, as Debian's or another CMake package of it describes it. Used by the build, and by whoever
# finds an installed Paceline.
find_package(Torch QUIET)
if(Torch_FOUND AND NOT TARGET paceline_torch)
  add_library(paceline_torch INTERFACE)
  target_include_directories(paceline_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(paceline_torch INTERFACE ${TORCH_LIBRARIES})
  separate_arguments(paceline_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(paceline_torch INTERFACE ${paceline_torch_flags})
  # PyPI's libtorch brings headers of a {fmt} of its own, which come first here, but not its library.
  get_target_property(paceline_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  foreach(directory IN LISTS TORCH_INCLUDE_DIRS)
    if(EXISTS "${directory}/fmt/format.h" AND NOT directory IN_LIST paceline_fmt_include)
      target_compile_definitions(paceline_torch INTERFACE FMT_HEADER_ONLY)
    endif()
  endforeach()
endif()
