#ifndef DTRUN_OPS_REDUCE_KERNEL_TABLE_H_
#define DTRUN_OPS_REDUCE_KERNEL_TABLE_H_

// Only plain types: this header is compiled with the flags of every instruction set, so it must not
// define anything that the linker could merge.

namespace dtrun::ops {

/// The arguments of a reduction kernel. `count` is not 0.
struct KernelCall {
  const void* const* inputs;
  int input_count;
  void* const* outputs;
  int output_count;
  int streamed_count;  // outputs at the end that are streamed: no inputs, aligned to
                       // kStreamAlignment
  unsigned long count;
  int divisor;  // of an average
  double before;
  double after;
};

using ReduceKernel = void (*)(const KernelCall& call);

/// The arguments of an f32 recurrence that a reduction feeds: see reduce.h.
struct RecurrenceCall {
  KernelCall reduction;  // its outputs become copies of `values`
  float keep, take, decay, by_accumulator, by_input;
  float* accumulator;  // null: none
  float* values;
};

using RecurrenceKernel = void (*)(const RecurrenceCall& call);

/// The arguments of a product of weighted sums: see reduce.h.
struct ProductsCall {
  const void* const* inputs;
  const double* weights;
  int half;
  unsigned long count;
  double* products;  // aa, bb and ab
};

inline constexpr int kFloatCount = 4;  // DTRUN_F16 ... DTRUN_F64
inline constexpr int kDTypeCount = 13;
inline constexpr int kReduceOpCount = 5;
inline constexpr unsigned long kStreamAlignment = 64;  // bytes

/// The kernels of one instruction set.
struct Kernels {
  ReduceKernel reduce[kDTypeCount][kReduceOpCount];  // indexed by the numbers of dtrun/c.h
  void (*f16_to_f32)(const void* input, void* output, unsigned long count);
  void (*bf16_to_f32)(const void* input, void* output, unsigned long count);
  void (*f32_to_f16)(const void* input, void* output, unsigned long count);
  void (*f32_to_bf16)(const void* input, void* output, unsigned long count);
  RecurrenceKernel recur_one;      // of one input, neither divided nor scaled
  RecurrenceKernel recur_two_sum;  // of two inputs
  RecurrenceKernel recur_two_average;
  void (*products[kFloatCount])(const ProductsCall& call);
  void (*weighted[kFloatCount])(const KernelCall& call, const double* weights);
  // `to` is aligned to kStreamAlignment. `bytes` is a multiple of kStreamAlignment.
  void (*copy_streaming)(void* to, const void* from, unsigned long bytes);
};

extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace dtrun::ops

#endif
