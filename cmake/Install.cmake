# Two components: `runtime` (the programs and the demo model) and `development` (the protos and the
# C++ client, found by find_package(attnserve)).
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attnserve)

if(ATTNSERVE_BUILD_SERVER)
  install(TARGETS attnserve attnctl RUNTIME COMPONENT runtime)
  install(FILES deploy/demo_model/config.json deploy/demo_model/model.safetensors
                deploy/demo_model/vocab.json
          DESTINATION ${CMAKE_INSTALL_DATADIR}/attnserve/demo_model COMPONENT runtime)
endif()

install(TARGETS attnserve_google_rpc EXPORT attnserve_google_rpc_targets
        ARCHIVE COMPONENT development)
install(TARGETS attnserve_proto attnserve_grpc attnserve_client EXPORT attnserve_targets
        ARCHIVE COMPONENT development FILE_SET HEADERS COMPONENT development)
install(EXPORT attnserve_google_rpc_targets NAMESPACE attnserve:: DESTINATION ${config_dir}
        FILE attnserveGoogleRpcTargets.cmake COMPONENT development)
install(EXPORT attnserve_targets NAMESPACE attnserve:: DESTINATION ${config_dir}
        FILE attnserveTargets.cmake COMPONENT development)

install(DIRECTORY proto/attnserve DESTINATION ${CMAKE_INSTALL_DATADIR}/attnserve/proto
        COMPONENT development FILES_MATCHING PATTERN "*.proto")
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/attnserve DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.pb.h")
# Apart from the other headers: a project with its own build of google.rpc uses that instead.
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/attnserve_google_rpc
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.pb.h")

configure_package_config_file(cmake/attnserveConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/attnserveConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnserveConfigVersion.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnserveConfig.cmake
              ${PROJECT_BINARY_DIR}/attnserveConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT development)
