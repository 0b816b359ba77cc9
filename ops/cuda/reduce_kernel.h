#ifndef DTRUN_OPS_CUDA_REDUCE_KERNEL_H_
#define DTRUN_OPS_CUDA_REDUCE_KERNEL_H_

#include <cuda.h>

#include "gpu/gpu_device.h"
#include "gpu/kernels.h"
#include "ops/collective/collective.h"
#include "ops/cuda/kernel_args.h"

namespace dtrun::ops::cuda {

/// The kernels of collectives.cu.
gpu::Kernels& CollectiveKernels();

/// The arguments of a kernel that does the arithmetic of `collective`, a reduction of `size` ranks,
/// over `inputs` arrays. All fields but the addresses and counts. Throws Error kUnavailable for
/// more than kMostInputs inputs.
ReduceArgs ReduceArgsOf(const Collective& collective, int size, int inputs);

/// Enqueues the reduction into `result`, whose type is that of all arrays.
void EnqueueReduce(
    const gpu::Device& device, ReduceArgs args, const Buffer& result, CUstream stream);

}  // namespace dtrun::ops::cuda

#endif  // DTRUN_OPS_CUDA_REDUCE_KERNEL_H_
