#include "lib/model/read_only_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace attnserve {
namespace {

// Linux reads at most 0x7ffff000 bytes a call.
constexpr size_t kMaxReadBytes = size_t{1} << 30;

std::string ErrorText(int error) { return std::generic_category().message(error); }

}  // namespace

ReadOnlyFile::ReadOnlyFile(std::string path, int descriptor, uint64_t size)
    : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

ReadOnlyFile::~ReadOnlyFile() { close(descriptor_); }

absl::StatusOr<std::unique_ptr<ReadOnlyFile>> ReadOnlyFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    const std::string text = absl::StrCat(path, ": cannot be opened: ", ErrorText(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  struct stat info = {};
  const bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  std::unique_ptr<ReadOnlyFile> file(
      new ReadOnlyFile(path, descriptor, regular ? static_cast<uint64_t>(info.st_size) : 0));
  if (!regular) return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  return file;
}

absl::Status ReadOnlyFile::Read(uint64_t offset, size_t count, void* target) const {
  char* out = static_cast<char*>(target);
  while (count > 0) {
    const ssize_t got =
        pread(descriptor_, out, std::min(count, kMaxReadBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      return absl::DataLossError(
          absl::StrCat(path_, ": cannot be read at byte ", offset, ": ", ErrorText(error)));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", offset, ", ", count,
                                              " bytes before what it should hold"));
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t limit_bytes) {
  ATTNSERVE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadOnlyFile> file, ReadOnlyFile::Open(path));
  if (file->size() > limit_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file->size(), " bytes, at most ", limit_bytes, " are read"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  ATTNSERVE_RETURN_IF_ERROR(file->Read(0, text.size(), text.data()));
  return text;
}

}  // namespace attnserve
