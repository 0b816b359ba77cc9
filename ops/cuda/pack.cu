// One launch copies, scales and converts all elements between many tensors and one flat block. A
// block of threads takes a piece of a tensor at a time. Each thread takes four elements at a time
// if they are aligned.

#include "gpu/kernel.h"
#include "ops/cuda/elementwise_args.h"
#include "ops/cuda/kernel_arithmetic.h"

namespace dtrun::ops::cuda {
namespace {

template <typename S>
struct alignas(4 * sizeof(S)) Four {
  S at[4];
};

// to[i] = from[i] * scale, in f32, rounded once.
template <typename From, typename To>
__device__ void Convert(
    const typename From::S* from, typename To::S* to, uint32_t count, float scale) {
  const auto convert = [&](typename From::S value) {
    return To::Narrow(From::Widen(value) * scale);
  };
  uint32_t done = 0;
  const bool aligned = reinterpret_cast<uint64_t>(from) % sizeof(Four<typename From::S>) == 0 &&
                       reinterpret_cast<uint64_t>(to) % sizeof(Four<typename To::S>) == 0;
  if (aligned) {
    const auto* sources = reinterpret_cast<const Four<typename From::S>*>(from);
    auto* targets = reinterpret_cast<Four<typename To::S>*>(to);
    for (uint32_t i = threadIdx.x; i < count / 4; i += blockDim.x) {
      const Four<typename From::S> source = sources[i];
      Four<typename To::S> target;
      for (int k = 0; k < 4; ++k) target.at[k] = convert(source.at[k]);
      targets[i] = target;
    }
    done = count / 4 * 4;
  }
  for (uint32_t i = done + threadIdx.x; i < count; i += blockDim.x) to[i] = convert(from[i]);
}

using Float32 = Plain<float>;

// From a tensor into the flat block.
struct Pack {
  template <typename Tensor, typename Block>
  __device__ static void Do(const PackArgs& args, const PackPiece& piece) {
    Convert<Tensor, Block>(
        static_cast<const typename Tensor::S*>(piece.data),
        static_cast<typename Block::S*>(args.block) + piece.first, piece.count, args.scale);
  }
};

// From the flat block into a tensor.
struct Unpack {
  template <typename Tensor, typename Block>
  __device__ static void Do(const PackArgs& args, const PackPiece& piece) {
    Convert<Block, Tensor>(
        static_cast<const typename Block::S*>(args.block) + piece.first,
        static_cast<typename Tensor::S*>(piece.data), piece.count, args.scale);
  }
};

template <typename Direction, typename Block>
__device__ void DoPiece(const PackArgs& args, const PackPiece& piece) {
  switch (piece.dtype) {
    case kPackF16: return Direction::template Do<Float16, Block>(args, piece);
    case kPackBF16: return Direction::template Do<BFloat16, Block>(args, piece);
    case kPackF32: return Direction::template Do<Float32, Block>(args, piece);
  }
}

template <typename Direction>
__device__ void DoPieces(const PackArgs& args) {
  for (uint32_t i = blockIdx.x; i < args.piece_count; i += gridDim.x) {
    const PackPiece piece = args.pieces[i];
    switch (args.block_dtype) {
      case kPackF16: DoPiece<Direction, Float16>(args, piece); break;
      case kPackBF16: DoPiece<Direction, BFloat16>(args, piece); break;
      case kPackF32: DoPiece<Direction, Float32>(args, piece); break;
    }
  }
}

}  // namespace
}  // namespace dtrun::ops::cuda

DTRUN_KERNEL(dtrun_pack, dtrun::ops::cuda::PackArgs) {
  dtrun::ops::cuda::DoPieces<dtrun::ops::cuda::Pack>(args);
}
DTRUN_KERNEL(dtrun_unpack, dtrun::ops::cuda::PackArgs) {
  dtrun::ops::cuda::DoPieces<dtrun::ops::cuda::Unpack>(args);
}
