#include "tests/bench/table.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace attnserve::bench {

Line AtLeast(double bound, Line line) {
  line.reach = absl::StrFormat(">= %.2f", bound);
  line.reached = line.ratio >= bound;
  return line;
}

Line AtMost(double bound, Line line) {
  line.reach = absl::StrFormat("<= %.2f", bound);
  line.reached = line.ratio <= bound;
  return line;
}

Comparison MedianRound(std::vector<Comparison> rounds) {
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), middle, rounds.end(),
                   [](const Comparison& a, const Comparison& b) { return a.ratio() < b.ratio(); });
  return *middle;
}

Comparison Compare(int rounds, const std::function<double()>& ceiling,
                   const std::function<double()>& figure) {
  std::vector<Comparison> measured;
  for (int round = 0; round < rounds; ++round) {
    Comparison both;
    both.ceiling = ceiling();
    both.figure = figure();
    measured.push_back(both);
  }
  return MedianRound(std::move(measured));
}

Line LineOf(const Comparison& comparison, double unit_scale, std::string unit,
            std::string benchmark, std::string shape) {
  Line line;
  line.benchmark = std::move(benchmark);
  line.shape = std::move(shape);
  line.figure = comparison.figure * unit_scale;
  line.unit = std::move(unit);
  line.ceiling = comparison.ceiling * unit_scale;
  line.ratio = comparison.ratio();
  return line;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0.0;
  const size_t index =
      std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double TimeOf(const std::function<void()>& work) {
  const double start = Now();
  work();
  return Now() - start;
}

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0.0, resident = 0.0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void Table::Add(Line line) {
  if (lines_.empty()) {
    std::printf("%-20s %-46s %10s %-9s %10s %6s  %s\n", "benchmark", "shape", "figure", "",
                "ceiling", "ratio", "reach");
  }
  std::printf("%-20s %-46s %10.3f %-9s %10.3f %6.2f  %s%s\n", line.benchmark.c_str(),
              line.shape.c_str(), line.figure, line.unit.c_str(), line.ceiling, line.ratio,
              line.reach.c_str(), line.reached ? "" : "  missed");
  std::fflush(stdout);
  lines_.push_back(std::move(line));
}

void Table::AddPoint(const std::string& chart, const std::string& curve, double x, double y) {
  charts_[chart][curve].emplace_back(x, y);
}

bool Table::WriteJson(const std::string& path, const std::string& machine, int threads) const {
  nlohmann::ordered_json all;
  all["machine"] = machine;
  all["threads"] = threads;
  for (const Line& line : lines_) {
    all["lines"].push_back({{"benchmark", line.benchmark},
                            {"shape", line.shape},
                            {"figure", line.figure},
                            {"unit", line.unit},
                            {"ceiling", line.ceiling},
                            {"ratio", line.ratio},
                            {"reach", line.reach},
                            {"reached", line.reached}});
  }
  if (!charts_.empty()) all["charts"] = charts_;
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  return file.good();
}

}  // namespace attnserve::bench
