// What the tests of the error catalogue share: one server, calls that differ from a good one in one
// thing, and the codes, reasons and fields they are answered with.
#ifndef ATTNSERVE_TESTS_RPC_ERROR_CATALOGUE_H_
#define ATTNSERVE_TESTS_RPC_ERROR_CATALOGUE_H_

#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/rpc/test_server.h"

namespace attnserve::testing {

class ErrorCatalogue : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new TestServer(); }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  template <class Request, class Response>
  static grpc::Status Call(grpc::Status (v1::AttentionService::Stub::*method)(grpc::ClientContext*,
                                                                              const Request&,
                                                                              Response*),
                           const Request& request, Response* response) {
    grpc::ClientContext context;
    return (server_->attention().*method)(&context, request, response);
  }

  static std::string Forward(const std::function<void(v1::ForwardRequest*)>& change) {
    v1::ForwardRequest request;
    request.set_model("tiny");
    *request.mutable_x() = RandomTensor({2, 3, kTinyWidth}, 1);
    change(&request);
    v1::ForwardResponse response;
    return Summary(Call(&v1::AttentionService::Stub::Forward, request, &response));
  }

  static std::string Attend(const std::function<void(v1::AttendRequest*)>& change) {
    v1::AttendRequest request;
    *request.mutable_q() = RandomTensor({1, 4, 3, 8}, 1);
    *request.mutable_k() = RandomTensor({1, 2, 5, 8}, 2);
    *request.mutable_v() = RandomTensor({1, 2, 5, 8}, 3);
    change(&request);
    v1::AttendResponse response;
    return Summary(Call(&v1::AttentionService::Stub::Attend, request, &response));
  }

  static grpc::Status DecodeStatus(const v1::DecodeRequest& request) {
    v1::DecodeResponse response;
    return Call(&v1::AttentionService::Stub::Decode, request, &response);
  }

  static std::string Decode(const std::string& session,
                            const std::function<void(v1::DecodeRequest*)>& change) {
    v1::DecodeRequest request = TinyStep(session, 2, 1);
    change(&request);
    return Summary(DecodeStatus(request));
  }

  static std::string Create(const std::function<void(v1::CreateSessionRequest*)>& change) {
    v1::CreateSessionRequest request;
    request.set_model("tiny");
    change(&request);
    v1::CreateSessionResponse response;
    grpc::ClientContext context;
    return Summary(server_->sessions().CreateSession(&context, request, &response));
  }

  static TestServer* server_;
};

inline TestServer* ErrorCatalogue::server_ = nullptr;

inline constexpr char kBadShape[] = "INVALID_ARGUMENT BAD_SHAPE ";
inline constexpr char kBadDType[] = "INVALID_ARGUMENT BAD_DTYPE ";
inline constexpr char kBadMask[] = "INVALID_ARGUMENT BAD_MASK ";
inline constexpr char kBadOption[] = "INVALID_ARGUMENT BAD_OPTION ";
inline constexpr char kMismatch[] = "INVALID_ARGUMENT SIZE_MISMATCH ";
inline constexpr char kTooLarge[] = "INVALID_ARGUMENT TOO_LARGE ";

inline std::string With(const char* what, const char* field) { return std::string(what) + field; }

}  // namespace attnserve::testing

#endif  // ATTNSERVE_TESTS_RPC_ERROR_CATALOGUE_H_
