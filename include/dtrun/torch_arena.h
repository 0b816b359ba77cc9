#ifndef DTRUN_TORCH_ARENA_H_
#define DTRUN_TORCH_ARENA_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

// Memory of large tensors that is used again; not for trainers.
//
// A training step makes the same large tensors as the one before. From malloc, which maps large
// blocks and gives them back, each of them is made of new pages, which the system has to zero: that
// can take as long as the computation. While a trainer asks for it, large tensors get their memory
// from an arena: one reserved range of addresses in huge pages, where the system grants them. A
// tensor gets the smallest free range that is large enough, of equal ones the lowest; ranges beside
// each other become one. So each step takes the addresses of the one before, and their pages.
//
// Pages of free ranges are bounded: with those in use they are at most a quarter more than tensors
// have taken at once, and 32 MiB. Beyond that, all of them go back to the system.

namespace dtrun {
namespace torch {
namespace internal {

/// Where memory of tensors comes from.
class MemorySource {
 public:
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  virtual ~MemorySource() = default;
  /// Takes back what it has given.
  virtual void GiveBack(void* data) = 0;
};

/// Thread-safe.
class Arena : public MemorySource {
 public:
  /// Smaller tensors are malloc's.
  static constexpr size_t kLeast = 1 << 18;
  /// What may be kept in any case.
  static constexpr size_t kSpare = 32 << 20;

  /// The process's. It is never destroyed: tensors may be freed last of all.
  static Arena& OfProcess() {
    static Arena* const arena = new Arena;
    return *arena;
  }

  /// Pages are kept while one of these lives.
  class User {
   public:
    User() { OfProcess().Enter(); }
    ~User() { OfProcess().Leave(); }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
  };

  /// In whole pages. Null if nobody wants pages to be kept, the tensor is small, or it does not
  /// fit.
  void* Take(size_t bytes) {
    if (bytes < kLeast || users_.load(std::memory_order_relaxed) == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > bytes_) return nullptr;
    const size_t needed = (bytes + kPage - 1) / kPage * kPage;
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second.bytes < needed) continue;
      if (best == free_.end() || it->second.bytes < best->second.bytes) best = it;
    }
    if (best == free_.end()) return nullptr;
    const size_t offset = best->first;
    if (!MakeUsable(offset + needed)) return nullptr;
    Split(best, needed);
    taken_.emplace(offset, needed);
    taken_bytes_ += needed;
    most_taken_ = std::max(most_taken_, taken_bytes_);
    if (taken_bytes_ + kept_bytes_ > most_taken_ + most_taken_ / 4 + kSpare) ReturnPages();
    return begin_ + offset;
  }

  void GiveBack(void* data) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = taken_.find(static_cast<size_t>(static_cast<char*>(data) - begin_));
    const size_t bytes = found->second;
    Free(found->first, bytes);
    taken_.erase(found);
    taken_bytes_ -= bytes;
    if (users_.load(std::memory_order_relaxed) == 0) ReturnPages();
  }

  /// Of free ranges, at most.
  size_t kept_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_bytes_;
  }
  /// Of tensors.
  size_t taken_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_bytes_;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = 1 << 21;

  // A free range; behind `kept` it has no pages.
  struct Range {
    size_t bytes, kept;
  };
  using Ranges = std::map<size_t, Range>;  // by offset

  Arena() {
    Reserve();
    if (bytes_ > 0) free_[0] = {bytes_, 0};
    RaiseThresholds();
  }

  // As much as the machine has, or what the system lets a process have.
  void Reserve() {
    const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (size_t bytes = pages * page / kHugePage * kHugePage; bytes >= kSpare; bytes /= 2) {
      void* const data = mmap(
          nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
          0);
      if (data == MAP_FAILED) continue;
      const auto address = reinterpret_cast<uintptr_t>(data);
      begin_ = static_cast<char*>(data) + (kHugePage - address % kHugePage) % kHugePage;
      bytes_ = bytes;
      madvise(begin_, bytes_, MADV_HUGEPAGE);
      madvise(begin_, bytes_, MADV_DONTDUMP);
      return;
    }
  }

  // What nobody may touch yet does not count as this process's memory.
  bool MakeUsable(size_t end) {
    if (end <= usable_) return true;
    const size_t to = std::min(bytes_, (end + kSpare - 1) / kSpare * kSpare);
    if (mprotect(begin_ + usable_, to - usable_, PROT_READ | PROT_WRITE) != 0) return false;
    usable_ = to;
    return true;
  }

  // glibc takes larger blocks than before from its heap, and keeps more of that, when a block that
  // it had mapped is freed: so the first large tensors of a process make it. Those do not come to
  // it any more; for what libraries beside LibTorch allocate in every step, this has the same
  // effect. Nothing is touched, so it costs no memory.
  static void RaiseThresholds() {
    void* volatile block = std::malloc((size_t{32} << 20) - 2 * kPage);
    std::free(block);
  }

  void Enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++users_;
  }

  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ > 0) return;
    ReturnPages();
    most_taken_ = 0;
  }

  // Takes the first `bytes` out of a range.
  void Split(Ranges::iterator range, size_t bytes) {
    const size_t offset = range->first;
    const Range whole = range->second;
    free_.erase(range);
    kept_bytes_ -= whole.kept;
    if (whole.bytes > bytes)
      Put(offset + bytes, {whole.bytes - bytes, whole.kept - std::min(whole.kept, bytes)});
  }

  void Free(size_t offset, size_t bytes) {
    Range range{bytes, bytes};
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
      range = Joined(range, next->second);
      kept_bytes_ -= next->second.kept;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == offset) {
        offset = before->first;
        range = Joined(before->second, range);
        kept_bytes_ -= before->second.kept;
        free_.erase(before);
      }
    }
    Put(offset, range);
  }

  static Range Joined(const Range& low, const Range& high) {
    return {low.bytes + high.bytes, high.kept > 0 ? low.bytes + high.kept : low.kept};
  }

  void Put(size_t offset, const Range& range) {
    free_[offset] = range;
    kept_bytes_ += range.kept;
  }

  void ReturnPages() {
    for (auto& item : free_) {
      Range& range = item.second;
      if (range.kept > 0) madvise(begin_ + item.first, range.kept, MADV_DONTNEED);
      range.kept = 0;
    }
    kept_bytes_ = 0;
  }

  char* begin_ = nullptr;
  size_t bytes_ = 0;
  size_t usable_ = 0;  // of these

  std::mutex mutex_;
  std::atomic<int> users_{0};
  Ranges free_;
  std::map<size_t, size_t> taken_;  // bytes by offset
  size_t kept_bytes_ = 0, taken_bytes_ = 0, most_taken_ = 0;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif
