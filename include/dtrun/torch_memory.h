#ifndef DTRUN_TORCH_MEMORY_H_
#define DTRUN_TORCH_MEMORY_H_

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <dtrun/torch_arena.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

// How autograd comes to make large gradients where they are reduced; not for trainers.
//
// LibTorch asks its allocator for the memory of every tensor. While a DistributedOptimizer expects
// gradients, allocations of a backward pass that have the size of one of them get a place in its
// block, which all ranks of the host map: the gradient is reduced where autograd has made it, and
// the place is free again when the gradient is dropped. It does not matter which gradient, or which
// intermediate result, takes which place. Of all other allocations, large ones come from
// an arena (torch_arena.h), and the rest is LibTorch's.

namespace dtrun {
namespace torch {
namespace internal {

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

#endif
