#include "ops/reduce/reduce.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "dtrun/error.h"
#include "ops/reduce/instruction_set.h"
#include "ops/reduce/kernel_table.h"

namespace dtrun::ops {
namespace {

const InstructionSet& Chosen() {
  static const InstructionSet chosen = InstructionSetsHere().front();
  return chosen;
}

// A thread that flushes denormals or rounds another way would compute other bits than its peers do:
// while this lives, the thread rounds to nearest and keeps denormals.
class StandardFloatEnvironment {
 public:
  StandardFloatEnvironment() : before_(_mm_getcsr()) {
    if ((before_ & kDeviations) != 0) _mm_setcsr(before_ & ~kDeviations);
  }
  ~StandardFloatEnvironment() {
    if ((before_ & kDeviations) != 0) _mm_setcsr(before_);
  }
  StandardFloatEnvironment(const StandardFloatEnvironment&) = delete;
  StandardFloatEnvironment& operator=(const StandardFloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDeviations =
      _MM_FLUSH_ZERO_MASK | _MM_ROUND_MASK | 0x40u;  // 0x40: denormals are zeros

  unsigned before_;
};

bool HasHalfConversion() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool CanStream(const void* output, const void* const* inputs, int input_count) {
  return reinterpret_cast<uintptr_t>(output) % kStreamAlignment == 0 &&
         std::find(inputs, inputs + input_count, output) == inputs + input_count;
}

// Without the fence.
void CopyPastCache(const InstructionSet& instructions, void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const uint64_t head =
      std::min(bytes, -reinterpret_cast<uintptr_t>(target) % uint64_t{kStreamAlignment});
  const uint64_t streamed = (bytes - head) / kStreamAlignment * kStreamAlignment;
  std::memcpy(target, source, head);
  if (streamed > 0) instructions.kernels->copy_streaming(target + head, source + head, streamed);
  std::memcpy(target + head + streamed, source + head + streamed, bytes - head - streamed);
}

}  // namespace

std::vector<InstructionSet> InstructionSetsHere() {
  std::vector<InstructionSet> here;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    here.push_back({"avx512", &kAvx512Kernels});
  }
  if (__builtin_cpu_supports("avx2") && HasHalfConversion())
    here.push_back({"avx2", &kAvx2Kernels});
  here.push_back({"baseline", &kBaselineKernels});
  return here;
}

void ReduceWith(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    void* const* outputs, int output_count, uint64_t count, DType dtype,
    const Arithmetic& arithmetic) {
  if (count == 0) return;
  const bool can_scale = dtype != DType::kBool;
  KernelCall call = {
      .inputs = inputs,
      .input_count = input_count,
      .outputs = outputs,
      .output_count = output_count,
      .streamed_count = 0,
      .count = count,
      .divisor = arithmetic.divisor == 0 ? input_count : arithmetic.divisor,
      .before = can_scale ? arithmetic.scale.before : 1,
      .after = can_scale ? arithmetic.scale.after : 1,
  };
  std::vector<void*> streamed_last;
  if (arithmetic.stores == Stores::kStreaming) {
    streamed_last.assign(outputs, outputs + output_count);
    const auto first_streamed = std::partition(
        streamed_last.begin(), streamed_last.end(),
        [&](void* output) { return !CanStream(output, inputs, input_count); });
    call.outputs = streamed_last.data();
    call.streamed_count = static_cast<int>(streamed_last.end() - first_streamed);
  }
  const StandardFloatEnvironment environment;
  const auto& by_op = instructions.kernels->reduce[static_cast<int>(dtype)];
  by_op[static_cast<int>(arithmetic.op)](call);
  if (call.streamed_count > 0) _mm_sfence();
}

void ConvertWith(
    const InstructionSet& instructions, const void* input, DType from, void* output, DType to,
    uint64_t count) {
  const StandardFloatEnvironment environment;
  const Kernels& kernels = *instructions.kernels;
  if (from == DType::kF16 && to == DType::kF32) {
    kernels.f16_to_f32(input, output, count);
  } else if (from == DType::kBF16 && to == DType::kF32) {
    kernels.bf16_to_f32(input, output, count);
  } else if (from == DType::kF32 && to == DType::kF16) {
    kernels.f32_to_f16(input, output, count);
  } else if (from == DType::kF32 && to == DType::kBF16) {
    kernels.f32_to_bf16(input, output, count);
  } else {
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("no conversion from ") + NameOf(from) + " to " + NameOf(to));
  }
}

void CopyWith(
    const InstructionSet& instructions, void* to, const void* from, uint64_t bytes, Stores stores) {
  if (stores == Stores::kStreaming) {
    CopyPastCache(instructions, to, from, bytes);
    _mm_sfence();
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

void Reduce(
    const void* const* inputs, int input_count, void* const* outputs, int output_count,
    uint64_t count, DType dtype, const Arithmetic& arithmetic) {
  ReduceWith(Chosen(), inputs, input_count, outputs, output_count, count, dtype, arithmetic);
}

void Convert(const void* input, DType from, void* output, DType to, uint64_t count) {
  ConvertWith(Chosen(), input, from, output, to, count);
}

void Copy(void* to, const void* from, uint64_t bytes, Stores stores) {
  CopyWith(Chosen(), to, from, bytes, stores);
}

void CopyUnfenced(void* to, const void* from, uint64_t bytes) {
  CopyPastCache(Chosen(), to, from, bytes);
}

void FenceStores() { _mm_sfence(); }

const char* ReduceInstructionSet() { return Chosen().name; }

}  // namespace dtrun::ops
