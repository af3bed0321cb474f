#include "server/http.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "civetweb.h"

namespace attnserve {
namespace {

constexpr char kIndex[] =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\"><head><title>attnserve</title></head><body>\n"
    "<h1>attnserve</h1>\n"
    "<ul>\n"
    "<li><a href=\"/metrics\">/metrics</a>: Prometheus metrics</li>\n"
    "<li><a href=\"/healthz\">/healthz</a>: the process is alive and listens</li>\n"
    "<li><a href=\"/readyz\">/readyz</a>: it takes calls</li>\n"
    "</ul>\n"
    "</body></html>\n";

constexpr char kText[] = "text/plain; charset=utf-8";

struct Page {
  const char* status = "200 OK";
  const char* type = kText;
  std::string body;
  const char* header = "";
};

Page MakePage(const HttpPages& pages, std::string_view method, std::string_view path) {
  if (method != "GET" && method != "HEAD") {
    return {"405 Method Not Allowed", kText, "only GET and HEAD\n", "Allow: GET, HEAD\r\n"};
  }
  if (path == "/") return {"200 OK", "text/html; charset=utf-8", kIndex};
  if (path == "/healthz") {
    if (pages.alive()) return {"200 OK", kText, "ok\n"};
    return {"503 Service Unavailable", kText, "no longer listening: restart\n"};
  }
  if (path == "/readyz") {
    if (pages.ready()) return {"200 OK", kText, "ready\n"};
    return {"503 Service Unavailable", kText, "not ready\n"};
  }
  if (path == "/metrics") {
    return {"200 OK", "text/plain; version=0.0.4; charset=utf-8", pages.metrics()};
  }
  return {"404 Not Found", kText, "no such page\n"};
}

}  // namespace

int HttpServer::Handle(mg_connection* connection, void* server) {
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const Page page = MakePage(static_cast<HttpServer*>(server)->pages_, method,
                             request->local_uri == nullptr ? "" : request->local_uri);
  std::string answer = absl::StrCat("HTTP/1.1 ", page.status, "\r\nContent-Type: ", page.type,
                                    "\r\nContent-Length: ", page.body.size(), "\r\n", page.header,
                                    "Connection: close\r\n\r\n");
  if (method != "HEAD") answer += page.body;
  mg_write(connection, answer.data(), answer.size());
  return 1;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              HttpPages pages) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages)));
  const char* options[] = {"listening_ports", address.c_str(), "num_threads", "32",
                           // A client that sends nothing must not hold a thread for long.
                           "request_timeout_ms", "2000", nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  server->context_ = mg_start(&callbacks, server.get(), options);
  mg_server_port port{};
  if (server->context_ == nullptr || mg_get_server_ports(server->context_, 1, &port) < 1) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address,
                     " for HTTP: the address is in use or not ours; choose "
                     "another --http, or --http off"));
  }
  mg_set_request_handler(server->context_, "/", &HttpServer::Handle, server.get());
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port.port);
  return server;
}

HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  std::future<void> stopped = std::async(std::launch::async, [this] { mg_stop(context_); });
  while (stopped.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) Wake();
}

// The acceptor looks at its stop flag every two seconds, and after every connection.
void HttpServer::Wake() const {
  const size_t colon = address_.rfind(':');
  std::string host = address_.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  char error[128];
  mg_connection* connection = mg_connect_client(
      host.c_str(), std::atoi(address_.c_str() + colon + 1), /*use_ssl=*/0, error, sizeof error);
  if (connection != nullptr) mg_close_connection(connection);
}

}  // namespace attnserve
