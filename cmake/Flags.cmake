# Compile flags shared by every target, through the interface target attnserve_flags.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the repository do not count: clones share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
                                  CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

add_library(attnserve_flags INTERFACE)
target_compile_features(attnserve_flags INTERFACE cxx_std_17)
# -ffp-contract=off: the order of every floating-point operation is ours to fix (lib/simd).
target_compile_options(attnserve_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wpedantic
                       -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(attnserve_flags INTERFACE -Wthread-safety)
endif()
if(ATTNSERVE_SANITIZE)
  # gcc's instrumentation makes it see uninitialised members in every std::variant (its bug 105562).
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(attnserve_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  add_compile_options(-fsanitize=${ATTNSERVE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ATTNSERVE_SANITIZE})
endif()

# attnserve_add_library(NAME SOURCES... ) makes the target attnserve_NAME with the alias
# attnserve::NAME. Includes are written from the repository's root: "lib/base/errors.h".
function(attnserve_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(attnserve_${name} STATIC ${ARG_SOURCES})
  add_library(attnserve::${name} ALIAS attnserve_${name})
  target_include_directories(attnserve_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(attnserve_${name} PUBLIC ${ARG_PUBLIC}
                        PRIVATE $<BUILD_INTERFACE:attnserve_flags> ${ARG_PRIVATE})
endfunction()
