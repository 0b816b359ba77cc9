#include "ops/reduce/reduce.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string>

#include "dtrun/error.h"
#include "ops/reduce/kernel_table.h"

namespace dtrun::ops {

/// While this object lives, the thread rounds to nearest and keeps denormals. Otherwise a thread
/// with another setting would compute different bits than its peers.
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

namespace {

bool HasHalfConversion() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && HasHalfConversion(); }

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

struct Level {
  InstructionSet set;
  bool (*is_here)();
};

// The best one first.
constexpr Level kLevels[] = {
    {{"avx512", &kAvx512Kernels}, HasAvx512},
    {{"avx2", &kAvx2Kernels}, HasAvx2},
    {{"baseline", &kBaselineKernels}, [] { return true; }},
};

const InstructionSet& BestHere() {
  __builtin_cpu_init();
  return std::find_if(
             std::begin(kLevels), std::end(kLevels),
             [](const Level& level) { return level.is_here(); })
      ->set;
}

// An entry of kLevels. Null: UseInstructionSet was not called.
constinit std::atomic<const InstructionSet*> asked_for = nullptr;

const InstructionSet& Chosen() {
  const InstructionSet* const asked = asked_for.load(std::memory_order_relaxed);
  if (asked != nullptr) return *asked;
  static const InstructionSet& best = BestHere();
  return best;
}

bool CanStream(const void* output, const void* const* inputs, int input_count) {
  return reinterpret_cast<uintptr_t>(output) % kStreamAlignment == 0 &&
         std::find(inputs, inputs + input_count, output) == inputs + input_count;
}

// Moves the outputs that can be streamed to the end. `sorted` owns the new order.
void SortOutputs(KernelCall& call, std::vector<void*>& sorted) {
  sorted.assign(call.outputs, call.outputs + call.output_count);
  const auto first_streamed = std::partition(sorted.begin(), sorted.end(), [&](void* output) {
    return !CanStream(output, call.inputs, call.input_count);
  });
  call.outputs = sorted.data();
  call.streamed_count = static_cast<int>(sorted.end() - first_streamed);
}

int FloatIndex(DType dtype) { return static_cast<int>(dtype) - static_cast<int>(DType::kF16); }

// Does not fence its stores.
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

// The elements before the first position at which all copies can be streamed. `count` if there is
// no such position.
uint64_t HeadOf(const RecurrenceArrays& arrays, uint64_t count) {
  const auto gap = [&](int copy) {
    return -reinterpret_cast<uintptr_t>(arrays.copies[copy]) % uint64_t{kStreamAlignment};
  };
  for (int copy = 1; copy < arrays.copy_count; ++copy) {
    if (gap(copy) != gap(0)) return count;
  }
  return arrays.copy_count == 0 ? 0 : std::min(count, gap(0) / sizeof(float));
}

// For one or two inputs. Computes elements [first, first + count), with the given stores.
void RecurInRegisters(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    const Arithmetic& arithmetic, const Recurrence& r, const RecurrenceArrays& arrays,
    uint64_t first, uint64_t count, Stores stores) {
  if (count == 0) return;
  const void* begin[2] = {};
  for (int k = 0; k < input_count; ++k) begin[k] = static_cast<const float*>(inputs[k]) + first;
  std::vector<void*> copies;
  for (int copy = 0; copy < arrays.copy_count; ++copy)
    copies.push_back(static_cast<float*>(arrays.copies[copy]) + first);
  const RecurrenceCall call = {
      .reduction =
          {.inputs = begin,
           .input_count = input_count,
           .outputs = copies.data(),
           .output_count = arrays.copy_count,
           .streamed_count = stores == Stores::kStreaming ? arrays.copy_count : 0,
           .count = count,
           .divisor = arithmetic.divisor == 0 ? input_count : arithmetic.divisor,
           .before = arithmetic.scale.before,
           .after = arithmetic.scale.after},
      .keep = r.keep,
      .take = r.take,
      .decay = r.decay,
      .by_accumulator = r.by_accumulator,
      .by_input = r.by_input,
      .accumulator = arrays.accumulator == nullptr ? nullptr : arrays.accumulator + first,
      .values = arrays.values + first};
  const Kernels& kernels = *instructions.kernels;
  if (input_count == 1) return kernels.recur_one(call);
  const bool average = arithmetic.op == ReduceOp::kAverage;
  (average ? kernels.recur_two_average : kernels.recur_two_sum)(call);
}

// Reduces a block of all inputs into a buffer, then runs the recurrence on the buffer.
void RecurByBlocks(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    const Arithmetic& arithmetic, const Recurrence& recurrence, const RecurrenceArrays& arrays,
    uint64_t count, uint64_t head) {
  constexpr uint64_t kBlock = 1024;  // elements; a block stays in the first-level cache
  alignas(64) float block[kBlock];
  std::vector<const void*> begin(static_cast<size_t>(input_count));
  std::vector<void*> copies(static_cast<size_t>(arrays.copy_count));
  for (uint64_t first = 0, n = 0; first < count; first += n) {
    n = std::min(first < head ? head - first : kBlock, std::min(kBlock, count - first));
    for (int k = 0; k < input_count; ++k)
      begin[static_cast<size_t>(k)] = static_cast<const float*>(inputs[k]) + first;
    for (int copy = 0; copy < arrays.copy_count; ++copy)
      copies[static_cast<size_t>(copy)] = static_cast<float*>(arrays.copies[copy]) + first;
    void* reduced = block;
    Arithmetic plain = arithmetic;
    plain.stores = Stores::kCached;
    ReduceWith(instructions, begin.data(), input_count, &reduced, 1, n, DType::kF32, plain);
    const void* one = block;
    const RecurrenceArrays part = {
        .accumulator = arrays.accumulator == nullptr ? nullptr : arrays.accumulator + first,
        .values = arrays.values + first,
        .copies = copies.data(),
        .copy_count = arrays.copy_count};
    const Stores stores = first < head ? Stores::kCached : arithmetic.stores;
    RecurInRegisters(instructions, &one, 1, {}, recurrence, part, 0, n, stores);
  }
}

}  // namespace

std::vector<InstructionSet> InstructionSetsHere() {
  __builtin_cpu_init();
  std::vector<InstructionSet> here;
  for (const Level& level : kLevels) {
    if (level.is_here()) here.push_back(level.set);
  }
  return here;
}

void UseInstructionSet(const InstructionSet& set) {
  for (const Level& level : kLevels) {
    if (level.set.kernels == set.kernels) asked_for.store(&level.set, std::memory_order_relaxed);
  }
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
  if (arithmetic.stores == Stores::kStreaming) SortOutputs(call, streamed_last);
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

void ReduceAndRecurWith(
    const InstructionSet& instructions, const void* const* inputs, int input_count,
    const Arithmetic& arithmetic, const Recurrence& recurrence, const RecurrenceArrays& arrays,
    uint64_t count) {
  const StandardFloatEnvironment environment;
  const bool streams = arithmetic.stores == Stores::kStreaming;
  const uint64_t head = streams ? HeadOf(arrays, count) : count;
  const bool finished = arithmetic.op == ReduceOp::kSum && arithmetic.scale.before == 1 &&
                        arithmetic.scale.after == 1;
  if (input_count == 2 || (input_count == 1 && finished)) {
    RecurInRegisters(
        instructions, inputs, input_count, arithmetic, recurrence, arrays, 0, head,
        Stores::kCached);
    RecurInRegisters(
        instructions, inputs, input_count, arithmetic, recurrence, arrays, head, count - head,
        arithmetic.stores);
  } else {
    RecurByBlocks(
        instructions, inputs, input_count, arithmetic, recurrence, arrays, count,
        streams ? head : 0);
  }
}

Products ProductsOfSumsWith(
    const InstructionSet& instructions, const void* const* inputs, const double* weights, int half,
    uint64_t count, DType dtype) {
  const StandardFloatEnvironment environment;
  double products[3] = {};
  const ProductsCall call = {inputs, weights, half, count, products};
  if (count > 0) instructions.kernels->products[FloatIndex(dtype)](call);
  return {products[0], products[1], products[2]};
}

void WeightedSumWith(
    const InstructionSet& instructions, const void* const* inputs, const double* weights,
    int input_count, void* const* outputs, int output_count, uint64_t count, DType dtype,
    Stores stores) {
  if (count == 0) return;
  KernelCall call = {
      .inputs = inputs,
      .input_count = input_count,
      .outputs = outputs,
      .output_count = output_count,
      .streamed_count = 0,
      .count = count,
      .divisor = 1,
      .before = 1,
      .after = 1,
  };
  std::vector<void*> streamed_last;
  if (stores == Stores::kStreaming) SortOutputs(call, streamed_last);
  const StandardFloatEnvironment environment;
  instructions.kernels->weighted[FloatIndex(dtype)](call, weights);
  if (call.streamed_count > 0) _mm_sfence();
}

bool HasWeightedSums(DType dtype) { return dtype >= DType::kF16 && dtype <= DType::kF64; }

Products ProductsOfSums(
    const void* const* inputs, const double* weights, int half, uint64_t count, DType dtype) {
  return ProductsOfSumsWith(Chosen(), inputs, weights, half, count, dtype);
}

void WeightedSum(
    const void* const* inputs, const double* weights, int input_count, void* const* outputs,
    int output_count, uint64_t count, DType dtype, Stores stores) {
  WeightedSumWith(
      Chosen(), inputs, weights, input_count, outputs, output_count, count, dtype, stores);
}

void ReduceAndRecur(
    const void* const* inputs, int input_count, const Arithmetic& arithmetic,
    const Recurrence& recurrence, const RecurrenceArrays& arrays, uint64_t count) {
  ReduceAndRecurWith(Chosen(), inputs, input_count, arithmetic, recurrence, arrays, count);
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
