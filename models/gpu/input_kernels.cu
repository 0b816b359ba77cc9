// The first kernels of a step. dtrun_begin_step writes the step's values to StepState. dtrun_gather
// copies the examples of the batch and converts their pixels.

#include "gpu/kernel.h"
#include "models/gpu/device_math.cuh"
#include "models/gpu/kernel_args.h"

namespace dtrun::models {
namespace {

// If a row has a multiple of 16 pixels, a thread loads 16 pixels at once, otherwise one pixel.
template <typename T>
__device__ void Gather(const GatherArgs& args) {
  T* const inputs = static_cast<T*>(args.inputs);
  const StepValues now = args.state->now;
  const uint32_t step = args.pixels % 16 == 0 ? 16 : 1, per_row = args.pixels / step;
  const uint64_t items = static_cast<uint64_t>(args.rows) * per_row;
  for (uint64_t item = gpu::FirstItem(); item < items; item += gpu::ItemStride()) {
    const uint32_t row = static_cast<uint32_t>(item / per_row);
    const uint32_t at = static_cast<uint32_t>(item % per_row) * step;
    const bool there = row < now.examples;
    const uint32_t example = there && now.order != nullptr ? now.order[row] : row;
    if (at == 0) args.wanted[row] = there ? now.labels[example] : -1;
    const uint8_t* const from = now.images + static_cast<uint64_t>(example) * args.pixels + at;
    T* const to = inputs + static_cast<uint64_t>(row) * args.pixels + at;
    if (step == 1) {
      FromFloat(there ? static_cast<float>(*from) / 255.0f : 0.0f, to);
      continue;
    }
    uint4 bytes = {0, 0, 0, 0};
    if (there) bytes = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    for (int half = 0; half < 2; ++half) {
      float values[kVector];
      for (int i = 0; i < kVector; ++i) {
        const uint32_t byte = words[2 * half + i / 4] >> 8 * (i % 4) & 0xFFu;
        values[i] = static_cast<float>(byte) / 255.0f;
      }
      Store8(values, to + half * kVector);
    }
  }
}

}  // namespace

DTRUN_KERNEL(dtrun_begin_step, BeginStepArgs) {
  if (gpu::FirstItem() != 0) return;
  StepState& state = *args.state;
  state.now = args.values;
  state.skip = 0;
  if (args.advance != 0) AdvanceUpdate(args.rule, state);
}

DTRUN_KERNEL(dtrun_gather_f32, GatherArgs) { Gather<float>(args); }
DTRUN_KERNEL(dtrun_gather_bf16, GatherArgs) { Gather<__nv_bfloat16>(args); }
DTRUN_KERNEL(dtrun_gather_f16, GatherArgs) { Gather<__half>(args); }

}  // namespace dtrun::models
