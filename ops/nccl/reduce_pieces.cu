// Reduces inputs that lie one after the other to one result, in the tree of ops/reduce/reduce.h. A
// value waits in `waiting` until its partner in the tree has come.

#include "gpu/kernel.h"
#include "ops/cuda/elementwise_args.h"
#include "ops/cuda/kernel_arithmetic.h"

namespace dtrun::ops::cuda {
namespace {

template <typename Type, typename Op>
__device__ void ReducePieces(const ReducePiecesArgs& args) {
  using S = typename Type::S;
  using A = typename Type::A;
  const bool scaled = args.scaled != 0;
  for (uint64_t i = gpu::FirstItem(); i < args.count; i += gpu::ItemStride()) {
    A waiting[12];
    int top = 0;
    for (int k = 0; k < args.inputs; ++k) {
      const A value = Type::Widen(
          reinterpret_cast<const S*>(args.pieces + static_cast<uint64_t>(k) * args.stride)[i]);
      waiting[top++] = scaled ? Scaled(value, args.before) : value;
      for (int n = args.combines[k]; n > 0; --n) {
        --top;
        waiting[top - 1] = Op::Combine(waiting[top - 1], waiting[top]);
      }
    }
    const A result = Op::Finish(waiting[0], args.divisor);
    reinterpret_cast<S*>(args.output)[i] =
        Type::Narrow(scaled ? Scaled(result, args.after) : result);
  }
}

// The cases are the numbers of DTRUN_SUM ... DTRUN_PRODUCT.
template <typename Type>
__device__ void ByOp(const ReducePiecesArgs& args) {
  switch (args.op) {
    case 0: return ReducePieces<Type, Sum>(args);
    case 1: return ReducePieces<Type, Average>(args);
    case 2: return ReducePieces<Type, Min>(args);
    case 3: return ReducePieces<Type, Max>(args);
    case 4: return ReducePieces<Type, Product>(args);
  }
}

}  // namespace
}  // namespace dtrun::ops::cuda

#define DTRUN_PIECES_KERNEL(name, Type)                                          \
  DTRUN_KERNEL(dtrun_reduce_pieces_##name, dtrun::ops::cuda::ReducePiecesArgs) { \
    dtrun::ops::cuda::ByOp<dtrun::ops::cuda::Type>(args);                        \
  }

DTRUN_PIECES_KERNEL(u8, Plain<uint8_t>)
DTRUN_PIECES_KERNEL(i8, Plain<int8_t>)
DTRUN_PIECES_KERNEL(u16, Plain<uint16_t>)
DTRUN_PIECES_KERNEL(i16, Plain<int16_t>)
DTRUN_PIECES_KERNEL(u32, Plain<uint32_t>)
DTRUN_PIECES_KERNEL(i32, Plain<int32_t>)
DTRUN_PIECES_KERNEL(u64, Plain<uint64_t>)
DTRUN_PIECES_KERNEL(i64, Plain<int64_t>)
DTRUN_PIECES_KERNEL(f16, Float16)
DTRUN_PIECES_KERNEL(bf16, BFloat16)
DTRUN_PIECES_KERNEL(f32, Plain<float>)
DTRUN_PIECES_KERNEL(f64, Plain<double>)

DTRUN_KERNEL(dtrun_reduce_pieces_bool, dtrun::ops::cuda::ReducePiecesArgs) {
  using dtrun::ops::cuda::Plain;
  const bool all = args.op == 2 || args.op == 4;  // min, product
  if (all) {
    dtrun::ops::cuda::ReducePieces<Plain<uint8_t>, dtrun::ops::cuda::And>(args);
  } else {
    dtrun::ops::cuda::ReducePieces<Plain<uint8_t>, dtrun::ops::cuda::Or>(args);
  }
}
