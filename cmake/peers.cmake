# SPDX-License-Identifier: Apache-2.0
#
# The peers of hpperf --beside, each a program of its own: hpperf-mpi once for each MPI that is there
# (NAME.openmpi, NAME.mpich and so on), hpperf-ccl for oneCCL, and a library for hpperf-gloo.py. This
# library and all other programs need none of them. Debian's MPIs say by their compiler wrappers
# where they are; the others lie in build/peers (tools/setup.sh peers), a folder each.
set(peers ${PROJECT_SOURCE_DIR}/build/peers)

# A program of that name from the sources, against what lies in `includes` and `libraries`; it is
# added to the list `programs`.
function(hp_peer_program program includes libraries)
  add_executable(${program} ${ARGN})
  target_include_directories(${program} SYSTEM PRIVATE ${includes})
  target_link_libraries(${program} PRIVATE flags perf ${libraries})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(programs ${programs} ${program} PARENT_SCOPE)
endfunction()

# Where mpicc.MPI is.
function(hp_debian_mpi mpi)
  hp_mpicc(${mpi} includes libraries)
  if(libraries)
    hp_peer_program(hpperf-mpi.${mpi} "${includes}" "${libraries}" ${ARGN})
    set(programs ${programs} PARENT_SCOPE)
  endif()
endfunction()

# Where build/peers/MPI is. It belongs to this folder and is not installed.
function(hp_packaged_mpi mpi)
  if(EXISTS ${peers}/${mpi}/include/mpi.h)
    hp_peer_program(hpperf-mpi.${mpi} ${peers}/${mpi}/include
                    "-L${peers}/${mpi}/lib;-Wl,-rpath,${peers}/${mpi}/lib;-lmpi" ${ARGN})
  endif()
endfunction()

# oneCCL's programs are C++, and start by Intel MPI.
function(hp_ccl)
  set(folders ${peers}/oneccl/lib ${peers}/intelmpi/lib)
  list(TRANSFORM folders PREPEND "-L" OUTPUT_VARIABLE looks)
  list(TRANSFORM folders PREPEND "-Wl,-rpath," OUTPUT_VARIABLE finds)
  add_executable(hpperf-ccl programs/hpperf-ccl.cpp)
  target_include_directories(hpperf-ccl SYSTEM PRIVATE ${peers}/oneccl/include
                             ${peers}/intelmpi/include)
  target_compile_definitions(hpperf-ccl PRIVATE _GNU_SOURCE)
  target_compile_options(hpperf-ccl PRIVATE -Wall -Wextra -Wshadow -Wno-deprecated-declarations)
  # -lccl names libccl.so.2 among what it needs, which the linker takes for the same library.
  target_link_libraries(hpperf-ccl PRIVATE flags_of_users perf ${looks} ${finds} -Wl,--no-warnings
                        -lccl -lmpi)
  set_target_properties(hpperf-ccl PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# A script, and what it shares with the other peers as a library.
function(hp_gloo)
  add_library(hpperf-peer SHARED ${perf_sources})
  target_link_libraries(hpperf-peer PRIVATE flags)
  set_target_properties(hpperf-peer PROPERTIES
    C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  configure_file(programs/hpperf-gloo.py ${PROJECT_BINARY_DIR}/bin/hpperf-gloo.py COPYONLY)
endfunction()

# Sanitizers see into an MPI as little as the MPI into them.
if(NOT HP_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  hp_glob(mpi_sources programs/hpperf-mpi.c programs/hpperf-mpi/*.c)
  foreach(mpi openmpi mpich)
    hp_debian_mpi(${mpi} ${mpi_sources})
  endforeach()
  foreach(mpi openmpi5 mpich5 intelmpi)
    hp_packaged_mpi(${mpi} ${mpi_sources})
  endforeach()
  if(EXISTS ${peers}/oneccl/include/oneapi/ccl.hpp AND EXISTS ${peers}/intelmpi/include/mpi.h)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
      enable_language(CXX)
      hp_ccl()
    endif()
  endif()
  if(EXISTS ${peers}/gloo)
    hp_gloo()
  endif()
  # hpperf looks for launchers in ../peers from where it lies.
  if(NOT EXISTS ${PROJECT_BINARY_DIR}/peers AND EXISTS ${peers})
    file(CREATE_LINK ${peers} ${PROJECT_BINARY_DIR}/peers SYMBOLIC)
  endif()
endif()
