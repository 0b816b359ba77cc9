#ifndef DTRUN_TORCH_HOOKS_H_
#define DTRUN_TORCH_HOOKS_H_

#include <dtrun/torch_tensors.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

// What DistributedOptimizer hangs into autograd; not for trainers.

namespace dtrun {
namespace torch {
namespace internal {

/// Runs a function after a gradient has been accumulated.
class AfterAccumulation : public ::torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> run) : run_(std::move(run)) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& outputs,
      const ::torch::autograd::variable_list&) override {
    run_();
    return outputs;
  }

 private:
  std::function<void()> run_;
};

/// Runs a function before a gradient is accumulated.
class BeforeAccumulation : public ::torch::autograd::FunctionPreHook {
 public:
  explicit BeforeAccumulation(std::function<void()> run) : run_(std::move(run)) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& gradients) override {
    if (!gradients.empty() && gradients[0].defined()) run_();
    return gradients;
  }

 private:
  std::function<void()> run_;
};

/// Zeros that nobody has written: memory that the system fills in when it is touched, so that a
/// gradient is zeroed at no cost.
class Blank {
 public:
  explicit Blank(const Tensor& like)
      : bytes_(static_cast<size_t>(like.numel()) * like.element_size()) {
    if (bytes_ == 0) return;
    void* data = mmap(
        nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
        0);
    if (data == MAP_FAILED) return;
    memory_ =
        std::shared_ptr<void>(data, [bytes = bytes_](void* mapped) { munmap(mapped, bytes); });
    const auto keep = [memory = memory_](void*) {};
    const auto options = ::torch::TensorOptions().dtype(like.scalar_type());
    zeros_ = ::torch::from_blob(data, like.sizes(), like.strides(), keep, options);
  }

  /// Zeros; undefined if there is no memory for them.
  Tensor Zeros() {
    if (memory_ != nullptr && madvise(memory_.get(), bytes_, MADV_DONTNEED) != 0) return Tensor();
    return zeros_;
  }
  /// Whether `gradient` is these zeros, and no page of them has been touched.
  bool Is(const Tensor& gradient) const {
    if (memory_ == nullptr || !gradient.is_same(zeros_)) return false;
    std::vector<unsigned char> pages((bytes_ + kPage - 1) / kPage);
    if (mincore(memory_.get(), bytes_, pages.data()) != 0) return false;
    for (const unsigned char page : pages) {
      if ((page & 1) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kPage = 4096;  // the least of any system

  size_t bytes_;
  std::shared_ptr<void> memory_;
  Tensor zeros_;
};

}  // namespace internal
}  // namespace torch
}  // namespace dtrun

#endif
