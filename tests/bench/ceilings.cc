#include "tests/bench/ceilings.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

#include "lib/base/aligned_buffer.h"
#include "lib/engine/worker_pool.h"
#include "tests/bench/table.h"

extern "C" void omp_set_num_threads(int count);  // of the runtime that oneDNN uses

namespace attnserve::bench {
namespace {

volatile uint64_t sink;

// Reads every byte, fetching 2 KiB ahead.
void ReadMemory(const char* memory, size_t bytes) {
  constexpr size_t kWords = 32;  // 256 bytes a turn
  uint64_t sums[kWords] = {};
  for (size_t i = 0; i < bytes; i += sizeof sums) {
    for (size_t line = 0; line < sizeof sums; line += 64) {
      __builtin_prefetch(memory + i + 2048 + line);
    }
    uint64_t words[kWords];
    std::memcpy(words, memory + i, sizeof words);
    for (size_t w = 0; w < kWords; ++w) sums[w] |= words[w];
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all |= sum;
  sink = all;
}

dnnl::memory::desc Matrix(int64_t rows, int64_t columns) {
  const int64_t stride = columns + 16;  // rows a power of two apart share cache sets
  return {{rows, columns}, dnnl::memory::data_type::f32, dnnl::memory::dims{stride, 1}};
}

dnnl::matmul MakeProduct(const dnnl::engine& cpu, int64_t rows, int64_t size) {
  const dnnl::memory::desc x = Matrix(rows, size), w = Matrix(size, size);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul({cpu, x, w, x});
#else
  return dnnl::matmul({dnnl::matmul::desc(x, w, x), cpu});
#endif
}

}  // namespace

struct Ceilings::Impl {
  explicit Impl(const Plan& plan)
      : pool(plan.threads),
        buffer_bytes(size_t{plan.quick ? 16u : 256u} << 20),
        size(plan.quick ? 256 : 2048) {
    const size_t page = size_t{2} << 20;
    buffer = static_cast<char*>(std::aligned_alloc(page, buffer_bytes + page));
    madvise(buffer, buffer_bytes + page, MADV_HUGEPAGE);
    std::memset(buffer, 1, buffer_bytes + page);
    for (AlignedBuffer<float>* matrix : {&x, &w, &y}) {
      float* const elements = matrix->Reserve(static_cast<size_t>(size * (size + 16)));
      for (int64_t i = 0; i < size * (size + 16); ++i) {
        elements[i] = 0.01f * static_cast<float>(i % 17);
      }
    }
    omp_set_num_threads(1);
    // One for each thread: a primitive's own scratchpad is no place for two.
    for (int i = 0; i < pool.worker_count(); ++i) {
      products.push_back(MakeProduct(cpu, rows(), size));
    }
  }
  ~Impl() { std::free(buffer); }

  int64_t rows() const { return size / pool.worker_count(); }

  WorkerPool pool;
  size_t buffer_bytes;
  int64_t size;  // of the square product
  char* buffer = nullptr;
  dnnl::engine cpu{dnnl::engine::kind::cpu, 0};
  AlignedBuffer<float> x, w, y;
  std::vector<dnnl::matmul> products;
};

Ceilings::Ceilings(const Plan& plan) : impl_(std::make_unique<Impl>(plan)) {}
Ceilings::~Ceilings() = default;

double Ceilings::Bandwidth() {
  const int64_t parts = impl_->pool.worker_count();
  const size_t part_bytes = impl_->buffer_bytes / static_cast<size_t>(parts) / 4096 * 4096;
  const double seconds = TimeOf([&] {
    impl_->pool.Run(parts, [&](int64_t part, int) {
      ReadMemory(impl_->buffer + static_cast<size_t>(part) * part_bytes, part_bytes);
    });
  });
  return static_cast<double>(part_bytes) * static_cast<double>(parts) / seconds;
}

double Ceilings::Peak() {
  const int64_t parts = impl_->pool.worker_count(), rows = impl_->rows(), size = impl_->size;
  const double seconds = TimeOf([&] {
    impl_->pool.Run(parts, [&](int64_t part, int) {
      omp_set_num_threads(1);
      dnnl::stream stream(impl_->cpu);
      const int64_t offset = part * rows * (size + 16);
      dnnl::memory x(Matrix(rows, size), impl_->cpu, impl_->x.data() + offset);
      dnnl::memory w(Matrix(size, size), impl_->cpu, impl_->w.data());
      dnnl::memory y(Matrix(rows, size), impl_->cpu, impl_->y.data() + offset);
      impl_->products[static_cast<size_t>(part)].execute(
          stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
      stream.wait();
    });
  });
  return 2.0 * static_cast<double>(rows * parts * size * size) / seconds;
}

}  // namespace attnserve::bench
