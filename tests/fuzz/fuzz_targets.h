// What the fuzzers run, one function for each parser of files. Each takes any bytes, aborts if a
// parser accepts what breaks its contract, and returns 0. tests/fuzz/<target>_fuzzer.cc hands them
// to libFuzzer, fuzz_replay_test.cc runs them over corpus/<target>/ on every compiler.
#ifndef ATTNSERVE_TESTS_FUZZ_FUZZ_TARGETS_H_
#define ATTNSERVE_TESTS_FUZZ_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

namespace attnserve {

// The bytes of a safetensors file; also read as 8 bytes that say how much data follows, and a
// header alone, so that changes of the header's length do not end the matter.
int FuzzSafetensors(const uint8_t* data, size_t size);

// The text of a config.json, beside tensors of every supported model type.
int FuzzHuggingFaceConfig(const uint8_t* data, size_t size);

// The text of a model.textproto.
int FuzzModelConfig(const uint8_t* data, size_t size);

}  // namespace attnserve

#endif  // ATTNSERVE_TESTS_FUZZ_FUZZ_TARGETS_H_
