#include "ops/cuda/pack.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/kernels.h"
#include "gpu/stream.h"
#include "ops/cuda/elementwise_args.h"

extern "C" const unsigned long long dtrun_pack_kernels[];

namespace dtrun::ops::cuda {
namespace {

using base::Text;

static_assert(static_cast<uint32_t>(DType::kF16) == kPackF16);
static_assert(static_cast<uint32_t>(DType::kBF16) == kPackBF16);
static_assert(static_cast<uint32_t>(DType::kF32) == kPackF32);

gpu::Kernels& PackKernels() {
  static auto* const kernels = new gpu::Kernels(dtrun_pack_kernels, "the kernels that pack");
  return *kernels;
}

void CheckDType(DType dtype, const std::string& what) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("pack: ", what, " is of ", NameOf(dtype), "; expected f32, f16 or bf16"));
}

}  // namespace

Pack::Pack(const gpu::Device& device, const std::vector<Buffer>& tensors, DType block_dtype)
    : device_(device), block_dtype_(block_dtype) {
  CheckDType(block_dtype, "the block");
  std::vector<PackPiece> pieces;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Buffer& tensor = tensors[t];
    CheckDType(tensor.dtype, Text("tensor ", t));
    if (tensor.device != device.index()) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "pack: tensor ", t,
                                           tensor.device < 0 ? std::string(" lies in host memory")
                                                             : Text(" lies on GPU ", tensor.device),
                                           "; expected GPU ", device.index()));
    }
    for (uint64_t begin = 0; begin < tensor.count; begin += kPieceElements) {
      const uint64_t count = std::min<uint64_t>(kPieceElements, tensor.count - begin);
      pieces.push_back(
          {tensor.Slice(begin, count).data, count_ + begin, static_cast<uint32_t>(count),
           static_cast<uint32_t>(tensor.dtype)});
    }
    count_ += tensor.count;
  }
  piece_count_ = static_cast<uint32_t>(pieces.size());
  pieces_ = gpu::DeviceMemory(device, pieces.size() * sizeof(PackPiece));
  const gpu::DeviceScope scope(device);
  const gpu::Stream stream(device);
  gpu::CopyToDevice(pieces_.address(), pieces.data(), pieces_.bytes(), stream.get());
  stream.Synchronize();
}

void Pack::Gather(void* block, float scale, CUstream stream) const {
  Launch("dtrun_pack", block, scale, stream);
}

void Pack::Scatter(const void* block, float scale, CUstream stream) const {
  Launch("dtrun_unpack", const_cast<void*>(block), scale, stream);
}

void Pack::Launch(const char* kernel, void* block, float scale, CUstream stream) const {
  const auto most = static_cast<uint32_t>(8 * device_.multiprocessors());
  const PackArgs args = {
      .pieces = pieces_.as<PackPiece>(),
      .piece_count = piece_count_,
      .block_dtype = static_cast<uint32_t>(block_dtype_),
      .block = block,
      .scale = scale};
  PackKernels().Launch(
      device_, kernel, {.blocks = std::min(piece_count_, most), .threads = kPackThreads}, stream,
      args);
}

}  // namespace dtrun::ops::cuda
