# Installs the development files into a fresh folder, builds the consumer against them, runs it.
set(prefix ${BUILD}/install-test/prefix)
set(compile "-DCMAKE_CXX_COMPILER=${COMPILER}")
if(SANITIZE)
  list(APPEND compile "-DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE}")
endif()
set(consumer ${BUILD}/install-test/consumer)
file(REMOVE_RECURSE ${BUILD}/install-test)
foreach(command
        "${CMAKE_COMMAND};--install;${BUILD};--prefix;${prefix};--component;development"
        "${CMAKE_COMMAND};-S;${SOURCE};-B;${consumer};-G;Ninja;-DCMAKE_PREFIX_PATH=${prefix};${compile}"
        "${CMAKE_COMMAND};--build;${consumer}"
        "${consumer}/consumer")
  execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
endforeach()
