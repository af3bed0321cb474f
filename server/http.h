// Metrics and health over HTTP.
#ifndef ATTNSERVE_SERVER_HTTP_H_
#define ATTNSERVE_SERVER_HTTP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_connection;
struct mg_context;

namespace attnserve {

// What the pages ask for. Called from threads of the HTTP server.
struct HttpPages {
  std::function<std::string()> metrics;
  std::function<bool()> ready;
  std::function<bool()> alive;
};

// Serves, for GET and HEAD (others: 405; other paths: 404):
//   /metrics  Prometheus' text format
//   /healthz  200 while the process lives and can be connected to, else 503
//   /readyz   200 while it takes calls, else 503
//   /         links to them
// Thread-safe.
class HttpServer {
 public:
  // `address` is host:port, port 0 for a free one. Unavailable if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           HttpPages pages);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the real port.
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(HttpPages pages) : pages_(std::move(pages)) {}
  static int Handle(mg_connection* connection, void* server);
  void Wake() const;

  HttpPages pages_;
  mg_context* context_ = nullptr;
  std::string address_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_HTTP_H_
