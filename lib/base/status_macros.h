// Early return of errors.
#ifndef ATTNSERVE_LIB_BASE_STATUS_MACROS_H_
#define ATTNSERVE_LIB_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function if `expr`, an absl::Status, is an error.
#define ATTNSERVE_RETURN_IF_ERROR(expr)                 \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

// Assigns the value of `expr`, an absl::StatusOr, to `target` (which may be a declaration), or
// returns its error.
#define ATTNSERVE_ASSIGN_OR_RETURN(target, expr) \
  ATTNSERVE_ASSIGN_OR_RETURN_IMPL_(ATTNSERVE_CONCAT_(status_or_, __LINE__), target, expr)
#define ATTNSERVE_ASSIGN_OR_RETURN_IMPL_(result, target, expr) \
  auto result = (expr);                                        \
  if (!result.ok()) return std::move(result).status();         \
  target = *std::move(result)
#define ATTNSERVE_CONCAT_(a, b) ATTNSERVE_CONCAT_IMPL_(a, b)
#define ATTNSERVE_CONCAT_IMPL_(a, b) a##b

#endif  // ATTNSERVE_LIB_BASE_STATUS_MACROS_H_
