// What a benchmark reports: figures beside ceilings that were measured in the same moments.
#ifndef ATTNSERVE_TESTS_BENCH_TABLE_H_
#define ATTNSERVE_TESTS_BENCH_TABLE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace attnserve::bench {

// How many times things are measured, and on how many threads.
struct Plan {
  int rounds = 9;
  int threads = 1;
  bool quick = false;  // smaller shapes and few rounds: does it run at all?
};

// A line of the table. `ratio` compares figure and ceiling: the share of it that was reached, or
// how many times the floor it took. All three are those of the round whose ratio is the median, so
// that a change of the machine's speed between rounds does not count.
struct Line {
  std::string benchmark;  // "decode attention"
  std::string shape;      // "H=32 G=8 d=128, 8 x 4096 tokens, F16"
  double figure = 0.0;
  std::string unit;  // "ms", "GFLOP/s", "tokens/s"
  double ceiling = 0.0;
  double ratio = 0.0;
  std::string reach;  // what the ratio should be: ">= 0.88"; empty: shown for information
  bool reached = true;
};

// The line with what its ratio should be.
Line AtLeast(double bound, Line line);
Line AtMost(double bound, Line line);

// A figure and its ceiling (or floor), measured in the same round.
struct Comparison {
  double figure = 0.0;
  double ceiling = 0.0;
  double ratio() const { return figure / ceiling; }
};
// The round with the median ratio; of an even number the worse of the two for a floor.
Comparison MedianRound(std::vector<Comparison> rounds);
// Measures both in turn, `rounds` times; the median round.
Comparison Compare(int rounds, const std::function<double()>& ceiling,
                   const std::function<double()>& figure);
// The line of a comparison whose figures are `unit_scale` times those compared.
Line LineOf(const Comparison& comparison, double unit_scale, std::string unit,
            std::string benchmark, std::string shape);

double Median(std::vector<double> values);
double Quantile(std::vector<double> values, double q);  // q in [0, 1]
double Now();                                           // seconds, steady
double TimeOf(const std::function<void()>& work);       // seconds
double ResidentBytes();                                 // of this process

// A curve of a chart: y over x.
using Curve = std::vector<std::pair<double, double>>;

// Collects lines and points; prints each line as it comes (progress) and the JSON at the end.
class Table {
 public:
  void Add(Line line);
  const std::vector<Line>& lines() const { return lines_; }
  void AddPoint(const std::string& chart, const std::string& curve, double x, double y);
  // One object: {"machine": ..., "lines": [...], "charts": {chart: {curve: [[x, y], ...]}}}.
  bool WriteJson(const std::string& path, const std::string& machine, int threads) const;

 private:
  std::vector<Line> lines_;
  std::map<std::string, std::map<std::string, Curve>> charts_;
};

}  // namespace attnserve::bench

#endif  // ATTNSERVE_TESTS_BENCH_TABLE_H_
