#include "tests/bench/on_request.h"

#include <istream>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/check.h"
#include "tests/bench/core_sequences.h"
#include "tests/bench/rounds.h"

namespace attnserve::bench {

void AnswerRequests(const Plan& plan, Ceilings& ceilings, std::istream& in, std::ostream& out) {
  std::map<std::string, std::unique_ptr<CoreSequences>> known;  // by the request's numbers
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind, numbers;
    words >> kind;
    std::getline(words, numbers);
    std::istringstream sizes(numbers);
    CoreShape shape;
    sizes >> shape.sequences >> shape.tokens >> shape.queries >> shape.heads >> shape.kv_heads >>
        shape.head_size;
    if ((kind != "attend" && kind != "floor") || sizes.fail()) {
      Check(absl::InvalidArgumentError(absl::StrCat("\"", line, "\" is no request")));
    }
    std::unique_ptr<CoreSequences>& sequences = known[numbers];
    if (sequences == nullptr) {
      sequences = std::make_unique<CoreSequences>(shape, plan.threads);
      sequences->Attend();
    }
    const double seconds = kind == "floor"
                               ? FloorSeconds({sequences->cache_bytes(), sequences->operations()},
                                              ceilings.Bandwidth(), ceilings.Peak())
                               : TimeOf([&] { sequences->Attend(); });
    out << seconds << std::endl;
  }
}

}  // namespace attnserve::bench
