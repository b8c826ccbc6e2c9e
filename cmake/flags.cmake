# SPDX-License-Identifier: Apache-2.0
#
# How every file is compiled. `flags` is for our own files, `flags_of_users` also for those who link
# the library. The bit contract rests on these: no contraction (gcc fuses a*b+c under gnu17), never
# -ffast-math. Assertions stay in: RelWithDebInfo is set here without NDEBUG.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Lines are what reports and backtraces need; a debugger wants variables, which are half of all bytes.
set(HP_DEBUG "" CACHE STRING "Debug information: 0 none, 1 lines, 2 variables too; 2, sanitizers 1")
if(HP_SANITIZE) # which look at every access: more optimisation costs the compiler twice the time
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
else()
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O3 -g")
endif()
if(NOT HP_DEBUG STREQUAL "")
  string(REGEX REPLACE "-g.*" "-g${HP_DEBUG}" CMAKE_C_FLAGS_RELWITHDEBINFO
         ${CMAKE_C_FLAGS_RELWITHDEBINFO})
endif()
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
if(NOT HP_SANITIZE) # where tests link the shared library and need every name of it
  set(CMAKE_C_VISIBILITY_PRESET hidden)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # clang-tidy reads them
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(flags_of_users INTERFACE)
target_include_directories(flags_of_users INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(flags_of_users INTERFACE Threads::Threads m)

add_library(flags INTERFACE)
target_link_libraries(flags INTERFACE flags_of_users)
target_compile_definitions(flags INTERFACE _GNU_SOURCE)
target_compile_options(flags INTERFACE
  -ffp-contract=off
  -fno-math-errno # else sqrt may set errno, and no loop with it is vectorised; results are the same
  -fno-omit-frame-pointer
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition
  -Wconversion -Wno-sign-conversion -Wvla -Wundef -Wpointer-arith -Wwrite-strings -Wformat=2 -Wno-format-nonliteral
  $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation> # texts are cut on purpose: error records
  $<$<BOOL:${HP_WERROR}>:-Werror>)

# Probes for perf, bpftrace and gdb: a nop each, in front of every call (src/trace/probe.h).
include(CheckIncludeFile)
check_include_file(sys/sdt.h HP_SDT_HEADER)
if(HP_SDT_HEADER)
  target_compile_definitions(flags INTERFACE HP_HAS_SDT=1)
else()
  message(STATUS "no sys/sdt.h here, no USDT probes (tools/setup.sh build installs it)")
endif()

# Sanitizers. target_clones resolves at load time, before a sanitizer's run time is up, so kernels
# are plain loops then.
if(HP_SANITIZE)
  target_compile_definitions(flags INTERFACE HP_PLAIN_KERNELS=1)
  target_compile_options(flags INTERFACE -fsanitize=${HP_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(flags_of_users INTERFACE -fsanitize=${HP_SANITIZE})
endif()
