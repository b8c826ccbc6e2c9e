# SPDX-License-Identifier: Apache-2.0
#
# Debian's MPIs say by their compiler wrappers where they are and how a program links with them.

# The folders of headers, and the words for the linker; both empty where mpicc.MPI is not.
function(hp_mpicc mpi out_includes out_libraries)
  set(${out_includes} "" PARENT_SCOPE)
  set(${out_libraries} "" PARENT_SCOPE)
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
    message(STATUS "mpi: mpicc.${mpi} does not say how it links, ${mpi} is left out")
    return()
  endif()
  set(${out_includes} ${includes} PARENT_SCOPE)
  set(${out_libraries} ${words} PARENT_SCOPE)
endfunction()
