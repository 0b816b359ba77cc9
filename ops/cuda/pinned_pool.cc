#include "ops/cuda/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace dtrun::ops::cuda {
namespace {

constexpr uint64_t kLeastBytes = 4096;

struct Pool {
  std::mutex mutex;
  std::map<uint64_t, std::vector<gpu::PinnedMemory>> blocks;  // by size
};

// Never destroyed: the driver may be gone before.
Pool& ThePool() {
  static auto* const pool = new Pool;
  return *pool;
}

}  // namespace

PinnedBlock::PinnedBlock(const gpu::Device& device, uint64_t bytes) {
  const uint64_t size = std::bit_ceil(std::max(bytes, kLeastBytes));
  {
    Pool& pool = ThePool();
    std::lock_guard lock(pool.mutex);
    std::vector<gpu::PinnedMemory>& blocks = pool.blocks[size];
    if (!blocks.empty()) {
      memory_ = std::move(blocks.back());
      blocks.pop_back();
      return;
    }
  }
  memory_ = gpu::PinnedMemory(device, size);
}

PinnedBlock::~PinnedBlock() {
  if (memory_.bytes() == 0) return;
  Pool& pool = ThePool();
  std::lock_guard lock(pool.mutex);
  pool.blocks[memory_.bytes()].push_back(std::move(memory_));
}

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

}  // namespace dtrun::ops::cuda
