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

// Memory of large tensors, for reuse. Internal.
//
// Each training step makes the same large tensors as the step before. malloc maps large blocks and
// unmaps them, so each large tensor gets new pages. The system zeroes new pages, which can take as
// long as the computation. Therefore large tensors get their memory from an arena, as long as a
// trainer asks for it. The arena is one reserved range of addresses, in huge pages if the system
// grants them. A tensor gets the smallest free range that fits; among equal ranges, the lowest one.
// Adjacent free ranges are merged. Thus each step reuses the addresses and pages of the step
// before.
//
// The pages of free ranges are bounded. Free and used pages together are at most 1.25 times the
// largest amount that tensors have used at once, plus 32 MiB. Beyond that bound, the pages of all
// free ranges go back to the system.

namespace dtrun {
namespace torch {
namespace internal {

/// A source of tensor memory.
class MemorySource {
 public:
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  virtual ~MemorySource() = default;
  /// Takes back memory that it has given.
  virtual void GiveBack(void* data) = 0;
};

/// An arena: see the top of this file. Thread-safe.
class Arena : public MemorySource {
 public:
  /// Smaller tensors use malloc.
  static constexpr size_t kLeast = 1 << 18;
  /// This much may be kept in any case.
  static constexpr size_t kSpare = 32 << 20;

  /// The arena of the process. It is never destroyed, because tensors may be freed at the very end.
  static Arena& OfProcess() {
    static Arena* const arena = new Arena;
    return *arena;
  }

  /// Pages are kept while a User lives.
  class User {
   public:
    User() { OfProcess().Enter(); }
    ~User() { OfProcess().Leave(); }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
  };

  /// Returns memory in whole pages. Null if there is no User, if the tensor is small, or if it does
  /// not fit.
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

  /// An upper bound of the pages of free ranges.
  size_t kept_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_bytes_;
  }
  /// The bytes that tensors use.
  size_t taken_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_bytes_;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = 1 << 21;

  // A free range. Only its first `kept` bytes have pages.
  struct Range {
    size_t bytes, kept;
  };
  using Ranges = std::map<size_t, Range>;  // by offset

  Arena() {
    Reserve();
    if (bytes_ > 0) free_[0] = {bytes_, 0};
    RaiseThresholds();
  }

  // Reserves as many addresses as the machine has memory, or as many as the system allows.
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

  // Makes addresses usable. Unusable addresses do not count as memory of the process.
  bool MakeUsable(size_t end) {
    if (end <= usable_) return true;
    const size_t to = std::min(bytes_, (end + kSpare - 1) / kSpare * kSpare);
    if (mprotect(begin_ + usable_, to - usable_, PROT_READ | PROT_WRITE) != 0) return false;
    usable_ = to;
    return true;
  }

  // Raises glibc's thresholds. When a mapped block is freed, glibc takes larger blocks from its
  // heap from then on, and keeps more of the heap. Normally, the first large tensors of a process
  // cause that. With the arena, those tensors no longer reach glibc. This function has the same
  // effect, for the allocations of other libraries. It touches no page, so it costs no memory.
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
  size_t usable_ = 0;  // usable part of bytes_

  std::mutex mutex_;
  std::atomic<int> users_{0};
  Ranges free_;
  std::map<size_t, size_t> taken_;  // bytes by offset
  size_t kept_bytes_ = 0, taken_bytes_ = 0, most_taken_ = 0;
};

// Autograd makes large gradients in the memory where they are reduced. Internal.
//
// LibTorch asks its allocator for the memory of every tensor. A DistributedOptimizer has a block
// that all ranks of the host map. While it expects gradients, an allocation of a backward pass with
// the size of a gradient gets a place in the block. The gradient is then reduced at the place where
// autograd has made it. When the gradient is dropped, its place is free again. Any gradient or
// intermediate result may use any place of its size. Other large allocations come from the arena,
// and all other allocations from LibTorch.

/// Places of gradients. Thread-safe: any thread may drop a tensor.
class Places : public MemorySource, public std::enable_shared_from_this<Places> {
 public:
  /// Places live as long as `block`.
  explicit Places(std::shared_ptr<const void> block) : block_(std::move(block)) {}

  void Add(void* data, size_t bytes) { places_.push_back({data, bytes, false}); }

  /// Returns a place of exactly this size. Null if none is free.
  void* Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place& place : places_) {
      if (place.taken || place.bytes != bytes) continue;
      place.taken = true;
      return place.data;
    }
    return nullptr;
  }

  /// The same. The place is taken until the last copy of the result is destroyed.
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

  /// Returns true if `data` is a place.
  bool Contain(const void* data) const {
    for (const Place& place : places_) {
      if (place.data == data) return true;
    }
    return false;
  }

  /// True: allocations may take places.
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

// Adapts to allocator interfaces of different versions: `allocate` was const in earlier versions,
// and they had no `copy_data`.
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

/// LibTorch's CPU allocator with places and an arena. It is installed once, for the rest of the
/// process, unless another allocator has a higher priority. LibTorch also allocates without a
/// tensor, and frees such memory by its address. Therefore this allocator keeps a table of its
/// memory.
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
    // Cheap checks first: they decide nearly all calls.
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
