#include "ops/cuda/reduce_kernel.h"

#include "base/text.h"
#include "dtrun/error.h"

extern "C" const unsigned long long dtrun_collectives[];

namespace dtrun::ops::cuda {

using base::Text;

gpu::Kernels& CollectiveKernels() {
  static auto* const kernels = new gpu::Kernels(dtrun_collectives, "the kernels of collectives");
  return *kernels;
}

ReduceArgs ReduceArgsOf(const Collective& collective, int size, int inputs) {
  if (inputs > kMostInputs)
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            Describe(collective), ": dtrun computes it on GPUs for at most ", kMostInputs,
            " ranks, found ", inputs));
  ReduceArgs args = {};
  args.inputs = inputs;
  CountCombines(0, inputs, args.combines);
  args.op = static_cast<int32_t>(collective.op);
  args.divisor = collective.divisor == 0 ? size : collective.divisor;
  args.before = collective.scale.before;
  args.after = collective.scale.after;
  args.scaled = args.before != 1 || args.after != 1 ? 1 : 0;
  return args;
}

void EnqueueReduce(
    const gpu::Device& device, ReduceArgs args, const Buffer& result, CUstream stream) {
  constexpr uint32_t kThreads = 256, kMostBlocks = 4096;
  args.output = static_cast<char*>(result.data);
  args.count = result.count;
  CollectiveKernels().Launch(
      device, Text("dtrun_reduce_", NameOf(result.dtype)).c_str(),
      {.blocks = gpu::BlocksFor(result.count, kThreads, kMostBlocks), .threads = kThreads}, stream,
      args);
}

}  // namespace dtrun::ops::cuda
