// The models a server serves.
#ifndef ATTNSERVE_LIB_MODEL_MODEL_REGISTRY_H_
#define ATTNSERVE_LIB_MODEL_MODEL_REGISTRY_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/model/model.h"

namespace attnserve {

// Models by name. Add is for start-up: once serving begins the registry no longer changes, and its
// const methods may be called from many threads.
class ModelRegistry {
 public:
  // InvalidArgument if the model's name is malformed (CheckModelName), AlreadyExists if it is
  // taken.
  absl::Status Add(std::shared_ptr<const Model> model);

  // The model of that name; an empty name means the only one. NOT_FOUND MODEL_NOT_FOUND lists what
  // is served.
  absl::StatusOr<std::shared_ptr<const Model>> Find(std::string_view name) const;

  // All models in order of their names.
  std::vector<std::shared_ptr<const Model>> List() const;

 private:
  std::map<std::string, std::shared_ptr<const Model>, std::less<>> models_;
};

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_MODEL_REGISTRY_H_
