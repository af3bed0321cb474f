// Files that are read, never mapped: one that is cut short while it is in use is an error, not a
// signal.
#ifndef ATTNSERVE_LIB_MODEL_READ_ONLY_FILE_H_
#define ATTNSERVE_LIB_MODEL_READ_ONLY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnserve {

// An open regular file. Immutable; any number of threads may call Read.
class ReadOnlyFile {
 public:
  // Follows symbolic links. NotFound if there is none, InvalidArgument if it is not a regular file
  // or cannot be read.
  static absl::StatusOr<std::unique_ptr<ReadOnlyFile>> Open(const std::string& path);
  ~ReadOnlyFile();
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& path() const { return path_; }
  // Bytes it had when it was opened.
  uint64_t size() const { return size_; }

  // Reads `count` bytes from `offset` on. DataLoss if the file ends before or cannot be read.
  absl::Status Read(uint64_t offset, size_t count, void* target) const;

 private:
  ReadOnlyFile(std::string path, int descriptor, uint64_t size);

  std::string path_;
  int descriptor_;
  uint64_t size_;
};

// The whole file. Errors of Open and Read; InvalidArgument if it has more than `limit_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t limit_bytes);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_READ_ONLY_FILE_H_
