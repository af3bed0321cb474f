// Checkpoints in the safetensors format, in one file or in several with an index.
#ifndef ATTNSERVE_LIB_MODEL_SAFETENSORS_H_
#define ATTNSERVE_LIB_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/aligned_buffer.h"
#include "lib/base/tensor.h"
#include "lib/model/read_only_file.h"
#include "lib/model/safetensors_header.h"

namespace attnserve {

// A tensor in memory of its own.
struct LoadedTensor {
  TensorView view;  // of `memory`
  AlignedBuffer<uint8_t> memory;
};

// An open checkpoint. Everything about its headers is checked by Open; data are read by Load.
// Immutable; any number of threads may use it.
class SafetensorsFile {
 public:
  // Opens `path`: a .safetensors file, or a .safetensors.index.json, whose "weight_map" says which
  // file beside it has which tensor. Only the tensors it lists are seen. NotFound if a file is
  // missing; InvalidArgument, with the file and the tensor, if anything in a header is wrong (see
  // safetensors_header.h), if a listed tensor is not in its file, or if the index names a file
  // outside its folder. Symbolic links are followed.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Names of all tensors, sorted.
  std::vector<std::string> names() const;
  // What the header says of a tensor; null if there is none of that name. Lives as long as this.
  const SafetensorsEntry* Find(std::string_view name) const;
  // Of a single file; empty for an index.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Reads a tensor of dtype F32, F16, BF16, I64 or BOOL. NotFound if there is none of that name;
  // InvalidArgument for other dtypes, more than kMaxRank dimensions, or a BOOL that is neither 0
  // nor 1; DataLoss if the file has shrunk since Open; ResourceExhausted without memory for it.
  absl::StatusOr<LoadedTensor> Load(std::string_view name) const;

 private:
  struct Shard {
    std::unique_ptr<ReadOnlyFile> file;
    uint64_t data_begin = 0;  // offset of the data in the file
  };
  struct Tensor {
    size_t shard = 0;
    SafetensorsEntry entry;
  };

  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}
  // Opens one file and returns its header; the file is shards_.back() then.
  absl::StatusOr<SafetensorsHeader> AddShard(const std::string& path);
  absl::Status OpenSingle();
  absl::Status OpenIndex();

  std::string path_;
  std::vector<Shard> shards_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written.
struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes a safetensors file, replacing one that is there. The tensors lie in the order of their
// element sizes, largest first, so that each is aligned to its elements. InvalidArgument for a name
// that occurs twice, is "__metadata__" or no UTF-8, and if the file cannot be written; a regular
// file is removed then.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace attnserve

#endif  // ATTNSERVE_LIB_MODEL_SAFETENSORS_H_
