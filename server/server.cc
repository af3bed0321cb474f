#include "server/server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "lib/base/status_macros.h"
#include "lib/cache/memory_limit.h"
#include "lib/gemm/packed_matrix.h"
#include "lib/session/tombstones.h"
#include "lib/simd/kv_layout.h"
#include "lib/simd/vector_ops.h"
#include "server/grpc_log.h"
#include "server/limits.h"
#include "server/log.h"
#include "server/reflection.h"

namespace attnserve {
namespace {

// What other calls than ours (health, reflection), and replies already made, get to end after the
// last of ours has.
constexpr std::chrono::seconds kFlushTime{5};

// gRPC breaks off, with CANCELLED, calls that reach it while it shuts down. So it is kept open,
// refusing calls with DRAINING, until none has come for kQuietTime, at most kQuietPeriods times.
constexpr std::chrono::milliseconds kQuietTime{100};
constexpr int kQuietPeriods = 10;

// Names what the bits of a result depend on: the recipe's version, the kernels' instruction set,
// the accumulator, the cache's block size, the products.
std::string NumericsId() {
  return absl::StrCat("v1 ", absl::AsciiStrToLower(simd::InstructionSet()), " f32 block",
                      kTokensPerBlock, " gemm=", GemmNumerics());
}

std::string WithPort(const std::string& address, int port) {
  if (address.compare(0, 5, "unix:") == 0) return address;
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

bool UsesOneDnn(const Model& model) {
  for (int64_t layer = 0; layer < model.layer_count(); ++layer) {
    if (model.layer(layer).uses_onednn()) return true;
  }
  return false;
}

void LogModel(const Model& model, double seconds) {
  const LayerSpec& spec = model.layer(0).spec();
  Log(LogLevel::kInfo, "model_loaded",
      {{"name", model.name()},
       {"format", model.format()},
       {"layers", model.layer_count()},
       {"input_size", spec.input_size},
       {"heads", spec.head_count},
       {"kv_heads", spec.kv_head_count},
       {"head_size", spec.key_head_size},
       {"max_tokens", model.max_tokens()},
       {"weight_dtype", std::string(DTypeName(model.weight_dtype()))},
       {"weight_bytes", model.weight_bytes()},
       {"gemm", UsesOneDnn(model) ? "onednn" : "native"},
       {"seconds", seconds}});
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      backend_(&metrics_),
      attention_service_(&backend_),
      session_service_(&backend_),
      model_service_(&backend_, &facts_) {
  facts_.instance_id = RandomId();
  facts_.start_time = std::chrono::system_clock::now();
  facts_.max_message_bytes = options_.max_message_bytes;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  ATTNSERVE_RETURN_IF_ERROR(server->StartHttp());
  ATTNSERVE_RETURN_IF_ERROR(server->StartGrpc());
  return server;
}

Server::~Server() {
  if (engine_ != nullptr) engine_->Drain();
  if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now());
  metrics_.SetEngine(nullptr);
}

absl::Status Server::StartHttp() {
  if (options_.http.empty()) return absl::OkStatus();
  HttpPages pages;
  pages.metrics = [this] { return metrics_.Scrape(); };
  pages.ready = [this] { return serving_ && !HasStoppedListening(); };
  pages.alive = [] { return !HasStoppedListening(); };
  ATTNSERVE_ASSIGN_OR_RETURN(http_, HttpServer::Start(options_.http, std::move(pages)));
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  grpc::EnableDefaultHealthCheckService(true);
  EnableReflection();
  grpc::ServerBuilder builder;
  // Two servers must not share a port unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds peers that have vanished, so that their calls are cancelled.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  // A compressed message would be expanded before its size is checked, up to a thousand times.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  std::vector<int> ports(options_.listen.size(), 0);
  for (size_t i = 0; i < ports.size(); ++i) {
    builder.AddListeningPort(options_.listen[i], grpc::InsecureServerCredentials(), &ports[i]);
  }
  builder.RegisterService(&attention_service_);
  builder.RegisterService(&session_service_);
  builder.RegisterService(&model_service_);
  grpc_ = builder.BuildAndStart();
  for (size_t i = 0; i < ports.size(); ++i) {
    if (ports[i] == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.listen[i],
                       " for gRPC: the address is in use or not ours; choose "
                       "another --listen"));
    }
    grpc_addresses_.push_back(WithPort(options_.listen[i], ports[i]));
  }
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC cannot start");
  SetServing(false);
  return absl::OkStatus();
}

void Server::SetServing(bool serving) {
  serving_.store(serving);
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  for (const char* service :
       {"", v1::AttentionService::service_full_name(), v1::SessionService::service_full_name(),
        v1::ModelService::service_full_name()}) {
    health->SetServingStatus(service, serving);
  }
}

absl::Status Server::Load() {
  ATTNSERVE_RETURN_IF_ERROR(LoadModels());
  StartEngine();
  backend_.Open(engine_.get(), &models_);
  SetServing(true);
  return absl::OkStatus();
}

absl::Status Server::LoadModels() {
  std::vector<ModelSource> sources = options_.models;
  if (sources.empty()) sources.push_back({"demo", DemoModelPath()});
  for (const ModelSource& source : sources) {
    const auto start = std::chrono::steady_clock::now();
    ATTNSERVE_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model,
                               LoadModel(source.name, source.path, options_.gemm));
    LogModel(*model,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    metrics_.SetModelWeightBytes(model->name(), model->weight_bytes());
    ATTNSERVE_RETURN_IF_ERROR(models_.Add(std::move(model)));
  }
  return absl::OkStatus();
}

void Server::StartEngine() {
  int64_t weight_bytes = 0;
  for (const auto& model : models_.List()) weight_bytes += model->weight_bytes();
  EngineOptions engine_options;
  std::string budget_source = "--kv_budget_bytes";
  engine_options.kv_budget_bytes = options_.kv_budget_bytes;
  if (engine_options.kv_budget_bytes == 0) {
    const MemoryLimit limit = ReadMemoryLimit();
    engine_options.kv_budget_bytes = DefaultKvBudget(limit.bytes, weight_bytes);
    budget_source = absl::StrCat(limit.source, " of ", limit.bytes, " bytes");
  }
  engine_options.worker_count = options_.threads;
  engine_options.default_session_ttl = options_.session_ttl;
  engine_options.limits = LimitsForMessages(options_.max_message_bytes);
  engine_options.limits.step_wait = options_.step_wait;
  engine_options.limits.slice_rows = options_.slice_rows;
  engine_options.observer = &metrics_;
  engine_ = std::make_unique<Engine>(engine_options);
  facts_.build = {ATTNSERVE_VERSION, OneDnnVersion(), simd::InstructionSet(), NumericsId()};
  metrics_.SetBuildInfo(facts_.build);
  metrics_.SetEngine(engine_.get());
  Log(engine_options.kv_budget_bytes > 0 ? LogLevel::kInfo : LogLevel::kWarning, "engine_started",
      {{"version", facts_.build.version},
       {"threads", engine_options.worker_count},
       {"instruction_set", facts_.build.instruction_set},
       {"onednn", facts_.build.onednn_version},
       {"numerics_id", facts_.build.numerics_id},
       {"kv_budget_bytes", engine_options.kv_budget_bytes},
       {"kv_budget_from", budget_source}});
}

void Server::RefuseStragglers(std::chrono::steady_clock::time_point deadline) {
  for (int i = 0; i < kQuietPeriods && std::chrono::steady_clock::now() < deadline; ++i) {
    const int64_t before = metrics_.rpcs_started();
    std::this_thread::sleep_for(kQuietTime);
    if (metrics_.rpcs_started() == before) return;
  }
}

bool Server::Drain() {
  const auto now = std::chrono::steady_clock::now();
  const auto deadline = now + options_.drain_timeout;
  Log(LogLevel::kInfo, "draining", {{"timeout_ms", options_.drain_timeout.count()}});
  serving_.store(false);
  grpc_->GetHealthCheckService()->Shutdown();
  bool idle = true;
  if (engine_ != nullptr) {
    engine_->Drain();
    attention_service_.Drain();
    idle = engine_->WaitUntilIdle(deadline);
    RefuseStragglers(deadline);
  }
  const auto left = std::max(deadline - std::chrono::steady_clock::now(),
                             std::chrono::steady_clock::duration::zero());
  grpc_->Shutdown(std::chrono::system_clock::now() +
                  std::min<std::chrono::steady_clock::duration>(left, kFlushTime));
  grpc_->Wait();
  Log(idle ? LogLevel::kInfo : LogLevel::kWarning, "drained", {{"all_finished", idle ? 1 : 0}});
  return idle;
}

}  // namespace attnserve
