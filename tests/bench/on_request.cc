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

namespace attnserve::bench {

void AnswerRequests(const Plan& plan, std::istream& in, std::ostream& out) {
  std::map<std::string, std::unique_ptr<CoreSequences>> known;
  for (std::string line; std::getline(in, line);) {
    std::unique_ptr<CoreSequences>& sequences = known[line];
    if (sequences == nullptr) {
      std::istringstream words(line);
      std::string kind;
      CoreShape shape;
      words >> kind >> shape.sequences >> shape.tokens >> shape.queries >> shape.heads >>
          shape.kv_heads >> shape.head_size;
      if (kind != "attend" || words.fail()) {
        Check(absl::InvalidArgumentError(absl::StrCat("\"", line, "\" is no request")));
      }
      sequences = std::make_unique<CoreSequences>(shape, plan.threads);
      sequences->Attend();
    }
    out << TimeOf([&] { sequences->Attend(); }) << std::endl;
  }
}

}  // namespace attnserve::bench
