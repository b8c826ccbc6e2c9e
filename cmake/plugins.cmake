# SPDX-License-Identifier: Apache-2.0
#
# Engines and transports in shared objects of their own, so that the library needs none of theirs. They
# get what they need of the library when they are opened, and link against nothing of ours. In the
# build tree as in an installed one they lie in lib/hyperparallel.

# NAME.so from the sources, added to the list `plugins`.
set(plugins "")
function(hp_plugin name library include)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE flags ${library})
  target_include_directories(${name} SYSTEM PRIVATE ${include})
  set_target_properties(${name} PROPERTIES
    PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/hyperparallel)
  set(plugins ${plugins} ${name} PARENT_SCOPE)
endfunction()

find_path(ONEDNN_INCLUDE oneapi/dnnl/dnnl_version.h)
find_library(ONEDNN dnnl)
set(onednn_version "")
if(ONEDNN AND ONEDNN_INCLUDE)
  file(STRINGS ${ONEDNN_INCLUDE}/oneapi/dnnl/dnnl_version.h onednn_version REGEX "VERSION_MAJOR +2$")
endif()
if(HP_SANITIZE)
  message(STATUS "matmul: plain loops alone, sanitizers see nothing of generated code")
elseif(onednn_version)
  hp_plugin(matmul_onednn ${ONEDNN} ${ONEDNN_INCLUDE} plugins/matmul_onednn.c)
else()
  message(STATUS "matmul: no oneDNN 2 here, plain loops alone (tools/setup.sh build installs it)")
endif()

# The transport of each MPI that is there: one source, since each has an ABI of its own.
include(cmake/mpi.cmake)
function(hp_mpi_plugin mpi)
  hp_mpicc(${mpi} includes libraries)
  if(libraries)
    hp_glob(sources plugins/mpi.c plugins/mpi/*.c)
    set(name libhyperparallel-mpi-${mpi})
    hp_plugin(${name} "${libraries}" "${includes}" ${sources})
    target_compile_definitions(${name} PRIVATE HP_MPI_NAME="mpi-${mpi}")
    set(plugins ${plugins} PARENT_SCOPE)
  else()
    message(STATUS "transport: no mpicc.${mpi} here, no mpi-${mpi} (tools/setup.sh mpi installs it)")
  endif()
endfunction()
if(NOT HP_SANITIZE AND NOT CMAKE_CROSSCOMPILING) # which see into an MPI as little as it into them
  hp_mpi_plugin(openmpi)
  hp_mpi_plugin(mpich)
endif()
