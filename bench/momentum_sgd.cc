#include "bench/momentum_sgd.h"

#include <cmath>
#include <cstddef>

// The compiler makes a version for each instruction set, and the loader selects one. Sanitizers do
// not work with this selection.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DTRUN_BENCH_KERNEL \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DTRUN_BENCH_KERNEL
#endif

namespace dtrun::bench {
namespace {

DTRUN_BENCH_KERNEL void Descend(
    const float* __restrict gradient, size_t count, float rate, float share,
    float* __restrict momentum, float* __restrict value) {
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = share * momentum[i] + gradient[i];
    value[i] -= rate * momentum[i];
  }
}

}  // namespace

MomentumSgd::MomentumSgd(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    values_.emplace_back(shape.count);
    parameters_.push_back(
        {shape.name, Buffer(values_.back().data(), shape.count),
         Buffer(nullptr, shape.count, DType::kF32)});
  }
}

void MomentumSgd::StepSlice(const ParameterSlice& slice) {
  Descend(
      static_cast<const float*>(slice.gradient), slice.count, kRate, kMomentum,
      static_cast<float*>(slice.slots[0]), static_cast<float*>(slice.value));
}

uint64_t WrongAfterTwoSteps(
    Communicator& comm, MomentumSgd& sgd, const std::function<void()>& step) {
  const auto each = [&sgd](const std::function<void(float*, float*, float)>& visit) {
    for (size_t i = 0; i < sgd.parameters().size(); ++i) {
      const Parameter& parameter = sgd.parameters()[i];
      for (uint64_t k = 0; k < parameter.value.count; ++k)
        visit(
            static_cast<float*>(parameter.gradient.data) + k,
            static_cast<float*>(parameter.value.data) + k, static_cast<float>(1 + (i + k) % 13));
    }
  };
  for (int done = 0; done < 2; ++done) {
    each([&](float* gradient, float*, float factor) {
      *gradient = static_cast<float>(comm.rank() + 1) * factor;
    });
    step();
  }
  const float average = static_cast<float>(comm.size() + 1) / 2;
  const float share = -MomentumSgd::kRate * average * (2 + MomentumSgd::kMomentum);
  uint64_t wrong = 0;
  each([&](float*, const float* value, float factor) {
    wrong += std::abs(*value - share * factor) > 1e-5f * std::abs(share * factor);
  });
  comm.AllReduce(Buffer(&wrong, 1), ReduceOp::kSum);
  return wrong;
}

}  // namespace dtrun::bench
