// SessionService.
#ifndef ATTNSERVE_SERVER_SESSION_SERVICE_H_
#define ATTNSERVE_SERVER_SESSION_SERVICE_H_

#include "attnserve/v1/session_service.grpc.pb.h"
#include "server/backend.h"

namespace attnserve {

// The contract is session_service.proto. Thread-safe.
class SessionService final : public attnserve::v1::SessionService::CallbackService {
 public:
  // `backend` outlives the gRPC server.
  explicit SessionService(const Backend* backend) : backend_(*backend) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const attnserve::v1::CreateSessionRequest* request,
                                          attnserve::v1::CreateSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const attnserve::v1::GetSessionRequest* request,
                                       attnserve::v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const attnserve::v1::ListSessionsRequest* request,
                                         attnserve::v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const attnserve::v1::DeleteSessionRequest* request,
                                          attnserve::v1::DeleteSessionResponse* response) override;
  grpc::ServerUnaryReactor* ResetCache(grpc::CallbackServerContext* context,
                                       const attnserve::v1::ResetCacheRequest* request,
                                       attnserve::v1::ResetCacheResponse* response) override;
  grpc::ServerUnaryReactor* TruncateSession(
      grpc::CallbackServerContext* context, const attnserve::v1::TruncateSessionRequest* request,
      attnserve::v1::TruncateSessionResponse* response) override;

 private:
  const Backend& backend_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_SESSION_SERVICE_H_
