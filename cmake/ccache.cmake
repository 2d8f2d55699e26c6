# Compiles through ccache where it is installed. What it has kept serves every copy of this tree, wherever that lies.
find_program(PACELINE_CCACHE ccache DOC "Compiler cache; OFF or empty for none")
if(PACELINE_CCACHE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${PACELINE_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)  # ccache looks into precompiled headers by this
  endif()
endif()
