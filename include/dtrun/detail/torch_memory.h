#ifndef DTRUN_DETAIL_TORCH_MEMORY_H_
#define DTRUN_DETAIL_TORCH_MEMORY_H_

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

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

// How autograd comes to make large gradients where they are reduced; not for trainers.
//
// LibTorch asks its allocator for the memory of every tensor. While a DistributedOptimizer expects
// gradients, allocations of a backward pass that have the size of one of them get a place in its
// block, which all ranks of the host map: the gradient is reduced where autograd has made it, and
// the place is free again when the gradient is dropped. It does not matter which gradient, or which
// intermediate result, takes which place. Of all other allocations, large ones come from
// an arena (Arena), and the rest is LibTorch's.

/// Places of gradients. Thread-safe: a tensor can be dropped by any thread.
class Places : public MemorySource, public std::enable_shared_from_this<Places> {
 public:
  /// Places live as long as `block`.
  explicit Places(std::shared_ptr<const void> block) : block_(std::move(block)) {}

  void Add(void* data, size_t bytes) { places_.push_back({data, bytes, false}); }

  /// A place of exactly this size; null if none is free.
  void* Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place& place : places_) {
      if (place.taken || place.bytes != bytes) continue;
      place.taken = true;
      return place.data;
    }
    return nullptr;
  }

  /// The same, taken until the last copy of the result is destroyed.
  std::shared_ptr<void> Borrow(size_t bytes) {
    void* const data = Take(bytes);
    if (data == nullptr) return nullptr;
    return std::shared_ptr<void>(
        data, [places = shared_from_this()](void* place) { places->GiveBack(place); });
  }

  void GiveBack(void* data) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place& place : places_) {
      if (place.data == data) place.taken = false;
    }
  }

  /// Whether `data` is a place.
  bool Contain(const void* data) const {
    for (const Place& place : places_) {
      if (place.data == data) return true;
    }
    return false;
  }

  /// Whether allocations may take places.
  std::atomic<bool> open{false};

 private:
  struct Place {
    void* data;
    size_t bytes;
    bool taken;
  };

  std::shared_ptr<const void> block_;
  std::mutex mutex_;
  std::vector<Place> places_;
};

// What an allocator has to override has changed: `allocate` was const, and `copy_data` was not
// there.
template <typename Base, typename = void>
class WithCopy : public Base {};
template <typename Base>
class WithCopy<Base, std::void_t<decltype(&Base::copy_data)>> : public Base {
 public:
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

using ConstAllocate = c10::DataPtr (c10::Allocator::*)(size_t) const;

template <
    typename Base,
    bool is_const = std::is_same<decltype(&c10::Allocator::allocate), ConstAllocate>::value>
class WithAllocate : public WithCopy<Base> {
 public:
  c10::DataPtr allocate(size_t bytes) override { return Allocate(bytes); }

 protected:
  virtual c10::DataPtr Allocate(size_t bytes) const = 0;
};
template <typename Base>
class WithAllocate<Base, true> : public WithCopy<Base> {
 public:
  c10::DataPtr allocate(size_t bytes) const override { return Allocate(bytes); }

 protected:
  virtual c10::DataPtr Allocate(size_t bytes) const = 0;
};

/// LibTorch's allocator for the CPU, with places and an arena. Installed once, for the rest of
/// the process, unless another one with a higher priority is. LibTorch also takes memory from it
/// without a tensor, and gives that back by its address: so it knows what it has given.
class PlaceAllocator : public WithAllocate<c10::Allocator> {
 public:
  static PlaceAllocator& Installed() {
    static PlaceAllocator* const installed = new PlaceAllocator(c10::GetCPUAllocator());
    return *installed;
  }

  void Join(const std::shared_ptr<Places>& places) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t kept = 0;
    for (const std::weak_ptr<Places>& known : known_) {
      if (!known.expired()) known_[kept++] = known;
    }
    known_.resize(kept);
    known_.push_back(places);
    any_ = true;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return inner_->raw_deleter() == nullptr ? nullptr : &Free;
  }

 protected:
  c10::DataPtr Allocate(size_t bytes) const override {
    if (bytes >= Arena::kLeast) {
      void* data = TakePlace(bytes);
      if (data == nullptr) data = TakeOfArena(bytes);
      if (data != nullptr) return c10::DataPtr(data, data, &Free, c10::DeviceType::CPU);
    }
    return inner_->allocate(bytes);
  }

 private:
  static constexpr size_t kLeastPlace = 1 << 20;  // smaller gradients share a bucket

  explicit PlaceAllocator(c10::Allocator* inner) : inner_(inner) { c10::SetCPUAllocator(this); }

  void* TakePlace(size_t bytes) const {
    // First what is cheap, and almost always so.
    if (bytes < kLeastPlace || !any_.load(std::memory_order_relaxed) ||
        c10::GradMode::is_enabled()) {
      return nullptr;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::weak_ptr<Places>& known : known_) {
      const std::shared_ptr<Places> places = known.lock();
      if (places == nullptr || !places->open.load(std::memory_order_relaxed)) continue;
      void* const data = places->Take(bytes);
      if (data == nullptr) continue;
      given_[data] = places;
      return data;
    }
    return nullptr;
  }

  void* TakeOfArena(size_t bytes) const {
    Arena& arena = Arena::OfProcess();
    void* const data = arena.Take(bytes);
    if (data == nullptr) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    given_[data] = std::shared_ptr<MemorySource>(std::shared_ptr<void>(), &arena);
    return data;
  }

  static void Free(void* data) { Installed().GiveBack(data); }

  void GiveBack(void* data) {
    std::shared_ptr<MemorySource> source;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = given_.find(data);
      if (found != given_.end()) {
        source = std::move(found->second);
        given_.erase(found);
      }
    }
    if (source == nullptr) return inner_->raw_deleter()(data);
    source->GiveBack(data);
  }

  c10::Allocator* const inner_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Places>> known_;
  mutable std::unordered_map<void*, std::shared_ptr<MemorySource>> given_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_MEMORY_H_
