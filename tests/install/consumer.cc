// A program of another project: finds the installed client, links it, talks to a server that is not
// there.
#include <attnserve/client/client.h>
#include <attnserve/v1/attention_service.pb.h>

#include <cstdio>

int main() {
  attnserve::v1::DecodeRequest request;
  request.set_session_id("consumer");
  auto client = attnserve::client::Client::Connect("unix:/nonexistent/socket");
  std::printf("%s\n", request.ShortDebugString().c_str());
  return 0;
}
