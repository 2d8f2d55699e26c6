# Stops when libtorch would compute with a BLAS other than OpenBLAS. Debian's libtorch_cpu.so calls libblas.so.3, which
# the alternatives system points somewhere; pip's libtorch has a BLAS of its own inside and calls none.
if(TARGET torch_cpu)
  get_target_property(torch_cpu_library torch_cpu LOCATION)
endif()
if(NOT torch_cpu_library OR NOT EXISTS ${torch_cpu_library})
  message(FATAL_ERROR "cannot tell which BLAS libtorch uses: its CMake package does not say where libtorch_cpu.so is")
endif()

# ldd follows the same paths as the program will.
execute_process(COMMAND ldd ${torch_cpu_library} OUTPUT_VARIABLE torch_needs RESULT_VARIABLE ldd_status)
if(NOT ldd_status EQUAL 0)
  message(FATAL_ERROR "cannot tell which BLAS libtorch uses: ldd ${torch_cpu_library} failed")
endif()
if(torch_needs MATCHES "libblas\\.so\\.3 => ([^ \n]+)")
  file(REAL_PATH ${CMAKE_MATCH_1} blas_library)
  file(STRINGS ${blas_library} blas_is_openblas LIMIT_COUNT 1 REGEX "libopenblas|openblas_get_config")
  if(NOT blas_is_openblas)
    message(FATAL_ERROR "libtorch would compute with ${blas_library}, which is not OpenBLAS (reference BLAS is 30 times "
                        "slower): apt-get install libopenblas0-pthread; where it is installed already, choose it with "
                        "update-alternatives --config libblas.so.3-${CMAKE_LIBRARY_ARCHITECTURE}")
  endif()
  message(STATUS "libtorch computes with ${blas_library}")
endif()
