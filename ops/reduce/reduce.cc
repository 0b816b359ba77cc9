#include "ops/reduce/reduce.h"

#include "ops/reduce/kernel_table.h"

namespace dtrun::ops {
namespace {

struct InstructionSet {
  const char* name;
  const ReduceKernelTable* kernels;
};

InstructionSet Choose() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return {"avx512", &kAvx512Kernels};
  }
  if (__builtin_cpu_supports("avx2")) return {"avx2", &kAvx2Kernels};
  return {"baseline", &kBaselineKernels};
}

const InstructionSet& Chosen() {
  static const InstructionSet chosen = Choose();
  return chosen;
}

}  // namespace

void Reduce(
    const void* const* inputs, int input_count, void* const* outputs, int output_count,
    uint64_t count, DType dtype, const Arithmetic& arithmetic) {
  if (count == 0) return;
  const bool scaled = dtype != DType::kBool;
  (*Chosen().kernels)[static_cast<int>(dtype)][static_cast<int>(arithmetic.op)](
      inputs, input_count, outputs, output_count, count,
      {
          .divisor = arithmetic.divisor == 0 ? input_count : arithmetic.divisor,
          .before = scaled ? arithmetic.scale.before : 1,
          .after = scaled ? arithmetic.scale.after : 1,
      });
}

const char* ReduceInstructionSet() { return Chosen().name; }

}  // namespace dtrun::ops
