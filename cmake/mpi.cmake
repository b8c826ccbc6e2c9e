# SPDX-License-Identifier: Apache-2.0
#
# Programs that are written with MPI, once for each MPI that is there: NAME.openmpi, NAME.mpich. The
# library and all other programs need neither. A compiler wrapper tells where its MPI is.

# Adds PROGRAM.MPI to the list `programs`, where mpicc.MPI is.
function(hp_mpi_program program mpi)
  find_program(MPICC_${mpi} mpicc.${mpi})
  mark_as_advanced(MPICC_${mpi})
  if(NOT MPICC_${mpi})
    return()
  endif()
  execute_process(COMMAND ${MPICC_${mpi}} -show OUTPUT_VARIABLE line RESULT_VARIABLE result
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  separate_arguments(words UNIX_COMMAND "${line}")
  set(includes ${words})
  list(FILTER includes INCLUDE REGEX "^-I")
  list(TRANSFORM includes REPLACE "^-I" "")
  list(FILTER words INCLUDE REGEX "^-[Ll]")
  if(NOT result EQUAL 0 OR NOT words)
    message(STATUS "mpi: mpicc.${mpi} does not say how it links, no ${program}.${mpi}")
    return()
  endif()
  hp_glob(parts programs/${program}/*.c)
  add_executable(${program}.${mpi} programs/${program}.c ${parts})
  target_include_directories(${program}.${mpi} SYSTEM PRIVATE ${includes})
  target_link_libraries(${program}.${mpi} PRIVATE flags perf ${words})
  set_target_properties(${program}.${mpi} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(programs ${programs} ${program}.${mpi} PARENT_SCOPE)
endfunction()

# Sanitizers see into an MPI as little as the MPI into them.
if(NOT HP_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  foreach(mpi openmpi mpich)
    hp_mpi_program(hpperf-mpi ${mpi})
  endforeach()
endif()
