# SPDX-License-Identifier: Apache-2.0
#
# From folders to targets.

# The files that match, relative patterns from the root; looked at again at each build.
function(hp_glob out_files)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  set(${out_files} ${files} PARENT_SCOPE)
endfunction()

# A program may write a web page: FOLDER/page/* is taken into FOLDER/assets.c by the assembler, which
# compilers do not notice.
function(hp_page folder)
  hp_glob(page ${folder}/page/*)
  if(page)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/${folder}/assets.c PROPERTIES
      OBJECT_DEPENDS "${page}"
      COMPILE_DEFINITIONS "PAGE=\"${PROJECT_SOURCE_DIR}/${folder}/page\"")
  endif()
endfunction()

# FOLDER/NAME.c, with what lies in FOLDER/NAME and its folders, becomes the executable DIRECTORY/NAME.
# Their names come back in the variable FOLDER. NAME-mpi.c is for peers.cmake.
function(hp_programs folder directory)
  hp_glob(mains ${folder}/*.c)
  list(FILTER mains EXCLUDE REGEX "-mpi[.]c$")
  set(names "")
  foreach(main ${mains})
    cmake_path(GET main STEM name)
    list(APPEND names ${name})
    hp_glob(parts ${folder}/${name}/*.c ${folder}/${name}/*/*.c)
    add_executable(${name} ${main} ${parts})
    target_link_libraries(${name} PRIVATE flags models)
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${directory})
    hp_page(${folder}/${name})
  endforeach()
  set(${folder} ${names} PARENT_SCOPE)
endfunction()
