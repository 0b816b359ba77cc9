#ifndef DTRUN_OPS_REDUCE_KERNEL_TABLE_H_
#define DTRUN_OPS_REDUCE_KERNEL_TABLE_H_

namespace dtrun::ops {

/// The kernels of one instruction set, by dtype and reduce op (the numbers of c.h). Plain types
/// alone: this header is compiled with the flags of every instruction set, so it must not define
/// anything that the linker could merge.
struct KernelArithmetic {
  int divisor;  // of an average
  double before;
  double after;
};

using ReduceKernel = void (*)(
    const void* const* inputs, int input_count, void* const* outputs, int output_count,
    unsigned long count, const KernelArithmetic& arithmetic);

inline constexpr int kDTypeCount = 13;
inline constexpr int kReduceOpCount = 5;

using ReduceKernelTable = ReduceKernel[kDTypeCount][kReduceOpCount];

extern const ReduceKernelTable kBaselineKernels;
extern const ReduceKernelTable kAvx2Kernels;
extern const ReduceKernelTable kAvx512Kernels;

}  // namespace dtrun::ops

#endif
