#ifndef DTRUN_TORCH_MEMORY_H_
#define DTRUN_TORCH_MEMORY_H_

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

// How autograd comes to make large gradients where they are reduced; not for trainers.
//
// LibTorch asks its allocator for the memory of every tensor. While a DistributedOptimizer expects
// gradients, allocations of a backward pass that have the size of one of them get a place in its
// block, which all ranks of the host map: the gradient is reduced where autograd has made it, and
// the place is free again when the gradient is dropped. It does not matter which gradient, or which
// intermediate result, takes which place. All other allocations, and all when no place is free,
// are LibTorch's.

namespace dtrun {
namespace torch {
namespace internal {

/// Places of gradients. Thread-safe: a tensor can be dropped by any thread.
class Places : public std::enable_shared_from_this<Places> {
 public:
  /// Places live as long as `block`.
  explicit Places(std::shared_ptr<const void> block) : block_(std::move(block)) {}

  void Add(void* data, size_t bytes) { places_.push_back({data, bytes, false}); }

  /// A place of exactly this size, taken until the result is destroyed; null if none is free.
  c10::DataPtr Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place& place : places_) {
      if (place.taken || place.bytes != bytes) continue;
      auto loan = std::make_unique<Loan>(Loan{shared_from_this(), &place});
      place.taken = true;
      return c10::DataPtr(place.data, loan.release(), &GiveBack, c10::DeviceType::CPU);
    }
    return c10::DataPtr();
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
  struct Loan {
    std::shared_ptr<Places> places;
    Place* place;
  };

  static void GiveBack(void* context) {
    const std::unique_ptr<Loan> loan(static_cast<Loan*>(context));
    const std::lock_guard<std::mutex> lock(loan->places->mutex_);
    loan->place->taken = false;
  }

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

/// LibTorch's allocator for the CPU, with places. Installed once, for the rest of the process,
/// unless another one with a higher priority is.
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

  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }

 protected:
  c10::DataPtr Allocate(size_t bytes) const override {
    // First what is cheap, and almost always so.
    if (bytes >= kLeast && any_.load(std::memory_order_relaxed) && !c10::GradMode::is_enabled()) {
      c10::DataPtr place = TakePlace(bytes);
      if (place) return place;
    }
    return inner_->allocate(bytes);
  }

 private:
  static constexpr size_t kLeast = 1 << 20;  // smaller gradients share a bucket

  explicit PlaceAllocator(c10::Allocator* inner) : inner_(inner) { c10::SetCPUAllocator(this); }

  c10::DataPtr TakePlace(size_t bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::weak_ptr<Places>& known : known_) {
      const std::shared_ptr<Places> places = known.lock();
      if (places == nullptr || !places->open.load(std::memory_order_relaxed)) continue;
      c10::DataPtr place = places->Take(bytes);
      if (place) return place;
    }
    return c10::DataPtr();
  }

  c10::Allocator* const inner_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Places>> known_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif
