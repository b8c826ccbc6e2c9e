# SPDX-License-Identifier: Apache-2.0
#
# Engines that lie in shared objects of their own, so that the library needs none of theirs. They
# get what they need of the library when they are opened, and link against nothing of ours. In the
# build tree as in an installed one they lie in lib/hyperparallel.

# NAME.so from plugins/NAME.c, added to the list `plugins`.
set(plugins "")
function(hp_plugin name library include)
  add_library(${name} MODULE plugins/${name}.c)
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
  hp_plugin(matmul_onednn ${ONEDNN} ${ONEDNN_INCLUDE})
else()
  message(STATUS "matmul: no oneDNN 2 here, plain loops alone (tools/setup.sh build installs it)")
endif()
