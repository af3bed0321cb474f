#include "lib/model/model_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/errors.h"
#include "lib/base/status_macros.h"

namespace attnserve {

absl::Status ModelRegistry::Add(std::shared_ptr<const Model> model) {
  const std::string name = model->name();
  ATTNSERVE_RETURN_IF_ERROR(CheckModelName(name));
  if (!models_.emplace(name, std::move(model)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("two models are called \"", name, "\"; names are unique"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Model>> ModelRegistry::Find(std::string_view name) const {
  if (name.empty() && models_.size() == 1) return models_.begin()->second;
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  const std::string served = absl::StrJoin(
      models_, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); });
  if (name.empty() && models_.size() > 1) return ModelNotChosen(served);
  return ModelNotFound(name, served.empty() ? "none" : served);
}

std::vector<std::shared_ptr<const Model>> ModelRegistry::List() const {
  std::vector<std::shared_ptr<const Model>> models;
  for (const auto& [name, model] : models_) models.push_back(model);
  return models;
}

}  // namespace attnserve
