// The command line.
#ifndef ATTNSERVE_SERVER_OPTIONS_H_
#define ATTNSERVE_SERVER_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/worker_pool.h"
#include "lib/gemm/packed_matrix.h"
#include "server/log.h"

namespace attnserve {

// A model to serve.
struct ModelSource {
  std::string name;
  std::string path;
};

struct ServerOptions {
  // host:port (IPv6 in brackets, port 0 for a free one) or unix:/path; at least one.
  std::vector<std::string> listen = {"127.0.0.1:50051"};
  std::string http = "127.0.0.1:9464";  // host:port; empty: none
  std::vector<ModelSource> models;      // empty: the bundled demo model, under the name "demo"
  int threads = DefaultThreadCount();   // that compute
  int64_t kv_budget_bytes = 0;          // 0: from the memory limit
  int64_t max_message_bytes = int64_t{64} << 20;
  std::chrono::milliseconds session_ttl{std::chrono::minutes(10)};
  std::chrono::milliseconds step_wait{2};  // EngineLimits::step_wait
  int64_t slice_rows = 256;                // EngineLimits::slice_rows; no flag, tests cut finer
  GemmBackend gemm = GemmBackend::kAuto;
  LogLevel log_level = LogLevel::kInfo;
  std::chrono::milliseconds drain_timeout{std::chrono::seconds(30)};
};

// Smallest --max_message_bytes: the replies of empty calls and errors always fit.
inline constexpr int64_t kMinMessageBytes = int64_t{64} << 10;

// Parses flags and environment (ATTNSERVE_LISTEN, ...; a flag goes before the variable). Returns
// nothing, with `options` filled, or the exit code of a program that is to end: 0 after --help and
// --version, which write to `out`; 2 after one line on `err` about what is wrong.
std::optional<int> ParseOptions(int argc, const char* const* argv, ServerOptions* options,
                                std::ostream& out, std::ostream& err);

// Folder of the demo model: <folder of the executable>/../share/attnserve/demo_model where it is
// installed, else that of the source tree.
std::string DemoModelPath();

}  // namespace attnserve

#endif  // ATTNSERVE_SERVER_OPTIONS_H_
