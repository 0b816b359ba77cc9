// The end of the forward pass and the beginning of the backward pass, in one pass over the logits.
// Each thread has one row of logits. Each block sums over its rows. The last block then adds the
// sums of all blocks, in the order of the blocks.

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/kernel_args.h"

namespace dtrun::models {
namespace {

// The softmax of one row.
struct Softmax {
  float largest = 0, sum = 0;
  bool is_right = false;

  __device__ float Exponential(float logit) const { return expf(logit - largest); }
};

// Of several equal largest logits, the first one counts. A NaN is never the largest.
__device__ inline Softmax SoftmaxOf(const float* logits, uint32_t classes, int32_t label) {
  Softmax softmax;
  softmax.largest = logits[0];
  int32_t first = 0;
  for (uint32_t c = 1; c < classes; ++c) {
    if (!(logits[c] > softmax.largest) && softmax.largest == softmax.largest) continue;
    if (logits[c] != logits[c]) continue;
    softmax.largest = logits[c];
    first = static_cast<int32_t>(c);
  }
  for (uint32_t c = 0; c < classes; ++c) softmax.sum += softmax.Exponential(logits[c]);
  softmax.is_right = first == label && softmax.largest == softmax.largest;
  return softmax;
}

template <typename T>
__device__ void Loss(const LossArgs& args) {
  StepState& state = *args.state;
  const uint32_t row = blockIdx.x * kThreads + threadIdx.x, width = args.stride + 2;
  const int32_t label = row < args.rows ? args.wanted[row] : -1;
  const bool counts = label >= 0;
  const float* const logits = args.logits + static_cast<uint64_t>(row) * args.stride;
  const Softmax softmax = counts ? SoftmaxOf(logits, args.classes, label) : Softmax();
  float* const partials = args.partials + blockIdx.x * width;

  const float loss = counts ? logf(softmax.sum) + softmax.largest - logits[label] : 0;
  const float loss_sum = SumOfBlock(loss);
  const float right = SumOfBlock(softmax.is_right ? 1.0f : 0.0f);
  if (threadIdx.x == 0) partials[args.stride] = loss_sum, partials[args.stride + 1] = right;

  if (args.gradients != nullptr) {
    const float factor = state.now.loss_factor * state.scale;
    T* const gradients = static_cast<T*>(args.gradients) + static_cast<uint64_t>(row) * args.stride;
    for (uint32_t c = 0; c < args.stride; ++c) {
      float gradient = 0;
      if (counts && c < args.classes) {
        gradient = softmax.Exponential(logits[c]) / softmax.sum;
        if (static_cast<int32_t>(c) == label) gradient -= 1;
        gradient *= factor;
      }
      if (row < args.rows) FromFloat(gradient, gradients + c);
      const float sum = SumOfBlock(gradient);
      if (threadIdx.x == 0) partials[c] = sum;
    }
  }

  if (!IsLastBlock(args.counter)) return;
  const volatile float* const of_blocks = args.partials;
  if (args.gradients != nullptr) {
    for (uint32_t c = threadIdx.x; c < args.stride; c += kThreads) {
      float sum = 0;
      for (uint32_t block = 0; block < gridDim.x; ++block) sum += of_blocks[block * width + c];
      args.bias_gradient[c] = sum;
    }
  }
  if (threadIdx.x != 0) return;
  double all = 0, all_right = 0;
  for (uint32_t block = 0; block < gridDim.x; ++block) {
    all += static_cast<double>(of_blocks[block * width + args.stride]);
    all_right += static_cast<double>(of_blocks[block * width + args.stride + 1]);
  }
  state.loss_sum += all;
  state.correct += static_cast<uint64_t>(all_right);
  state.examples += state.now.examples;
  if (args.losses != nullptr)
    args.losses[state.now.loss_slot] =
        static_cast<float>(all * static_cast<double>(state.now.loss_factor));
}

}  // namespace

DTRUN_KERNEL(dtrun_loss_f32, LossArgs) { Loss<float>(args); }
DTRUN_KERNEL(dtrun_loss_bf16, LossArgs) { Loss<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_loss_f16, LossArgs) { Loss<__half>(args); }

}  // namespace dtrun::models
