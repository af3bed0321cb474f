// attnserve_bench: how fast, beside what the machine can do.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/worker_pool.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/on_request.h"

namespace attnserve::bench {
namespace {

struct Benchmark {
  const char* name;
  void (*run)(const Bench&);
  bool only_if_named = false;
};

constexpr Benchmark kBenchmarks[] = {
    {"decode", DecodeAttention}, {"projections", Projections}, {"prefill", Prefill},
    {"latency", RpcLatency},     {"sessions", ManySessions},   {"prompt", LongPrompt},
    {"memory", Memory},          {"scale", Scale, true},
};

// "model name" of /proc/cpuinfo.
std::string Machine() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 10, "model name") == 0) return line.substr(line.find(':') + 2);
  }
  utsname system{};
  uname(&system);
  return system.machine;
}

int Main(int argc, char** argv) {
  CLI::App app("Measures attnserve against what the machine can do, in one run", "attnserve_bench");
  Plan plan;
  plan.threads = DefaultThreadCount();
  std::vector<std::string> names;
  std::string json;
  std::string all;
  std::vector<std::string> known;
  for (const Benchmark& benchmark : kBenchmarks) {
    known.push_back(benchmark.name);
    if (!benchmark.only_if_named) all += " " + known.back();
  }
  app.add_option("BENCHMARK", names, "Which to run; default:" + all + "; scale takes minutes")
      ->check(CLI::IsMember(known).description(""));
  app.add_option("--threads", plan.threads, "Threads that compute")->capture_default_str();
  app.add_option("--rounds", plan.rounds,
                 "Measurements of each line; the one with the median ratio counts")
      ->check(CLI::Range(1, 1000).description(""))
      ->capture_default_str();
  app.add_option("--json", json, "Also write the table to this file");
  app.add_flag("--quick", plan.quick, "Small shapes, few rounds: does everything run?");
  app.footer(
      "A round measures the ceilings before and after; a line is the round whose ratio is the "
      "median.");
  bool on_request = false;
  app.add_flag("--on-request", on_request, "Measure the shapes that standard input names");
  CLI11_PARSE(app, argc, argv);
  if (plan.quick) plan.rounds = 3;
  Ceilings ceilings(plan);
  if (on_request) {
    AnswerRequests(plan, ceilings, std::cin, std::cout);
    return 0;
  }

  Table table;
  const Bench bench = {plan, ceilings, table};
  for (const Benchmark& benchmark : kBenchmarks) {
    const bool wanted = names.empty()
                            ? !benchmark.only_if_named
                            : std::find(names.begin(), names.end(), benchmark.name) != names.end();
    if (wanted) benchmark.run(bench);
  }
  if (!json.empty() && !table.WriteJson(json, Machine(), plan.threads)) {
    std::fprintf(stderr, "attnserve_bench: cannot write %s\n", json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace attnserve::bench

int main(int argc, char** argv) { return attnserve::bench::Main(argc, argv); }
