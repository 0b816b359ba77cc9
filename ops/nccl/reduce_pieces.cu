// Reduces inputs that lie one after the other to one result, in the tree of ops/reduce/reduce.h.

#include "gpu/kernel.h"
#include "ops/cuda/elementwise_args.h"
#include "ops/cuda/kernel_arithmetic.h"

namespace dtrun::ops::cuda {
namespace {

template <typename Type>
__device__ void ReducePieces(const ReducePiecesArgs& args) {
  const Reduction reduction = {args.before, args.after,  args.scaled,  args.divisor,
                               args.op,     args.inputs, args.combines};
  const auto input = [&](int k) { return args.pieces + static_cast<uint64_t>(k) * args.stride; };
  Reduce<Type>(reduction, input, args.output, gpu::FirstItem(), gpu::ItemStride(), args.count);
}

}  // namespace
}  // namespace dtrun::ops::cuda

#define DTRUN_PIECES_KERNEL(name, Type)                                          \
  DTRUN_KERNEL(dtrun_reduce_pieces_##name, dtrun::ops::cuda::ReducePiecesArgs) { \
    dtrun::ops::cuda::ReducePieces<Type>(args);                                  \
  }
DTRUN_FOR_EACH_REDUCED_TYPE(DTRUN_PIECES_KERNEL)
