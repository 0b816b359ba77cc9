#ifndef DTRUN_TESTS_GPU_SIMULATOR_TEST_KERNELS_H_
#define DTRUN_TESTS_GPU_SIMULATOR_TEST_KERNELS_H_

#include <cstdint>

namespace dtrun::testing {

struct ScaleArgs {
  float* values;
  uint64_t count;
  float factor;
};

/// Each block writes the sum of its part to `sums`.
struct SumArgs {
  const float* values;
  uint64_t count;
  float* sums;
};

/// In each block, values[i] becomes values[(i + by) % threads].
struct RotateArgs {
  uint32_t* values;
  uint32_t by;
};

/// Sets `mine` to `epoch` and waits until the other kernel has set `theirs`.
struct MeetArgs {
  uint32_t* mine;
  uint32_t* theirs;
  uint32_t epoch;
  float* value;
  const float* peer_value;
};

struct HalfArgs {
  const float* values;
  uint16_t* bf16;
  uint16_t* f16;
  uint64_t count;
};

}  // namespace dtrun::testing

#endif
