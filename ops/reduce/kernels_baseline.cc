#include <immintrin.h>

static constexpr unsigned long kHalfLanes = 1;

// Shifted into place, a half is a float whose exponent is 112 too small. One exact multiplication
// corrects the exponent, also for subnormal halves. An infinity gets the exponent of a float
// infinity. A NaN becomes quiet.
static inline void WidenHalves(const unsigned short* from, float* to) {
  const unsigned value = *from;
  const unsigned magnitude = value & 0x7fffu;
  const float scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
  const unsigned infinite = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  const unsigned quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
  *to = __builtin_bit_cast(
      float, __builtin_bit_cast(unsigned, scaled) | infinite | quiet | ((value & 0x8000u) << 16));
}

// Rounds to nearest, ties to even. Below 2^-14 the hardware rounds: adding 0.5 leaves exactly the
// bits of a subnormal half. A NaN keeps its sign and its first bits and becomes quiet.
static inline void NarrowHalves(const float* from, unsigned short* to) {
  const unsigned bits = __builtin_bit_cast(unsigned, *from);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  const unsigned subnormal =
      __builtin_bit_cast(unsigned, __builtin_bit_cast(float, magnitude) + 0.5f) - 0x3f000000u;
  const unsigned normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const unsigned finite = magnitude < 0x38800000u ? subnormal : normal;
  const unsigned nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const unsigned result = magnitude > 0x7f800000u    ? nan
                          : magnitude >= 0x47800000u ? 0x7c00u
                                                     : finite;
  *to = static_cast<unsigned short>(sign | result);
}

#define DTRUN_KERNELS kBaselineKernels
#define DTRUN_VECTOR __m128i
#define DTRUN_LOAD _mm_loadu_si128
#define DTRUN_STORE _mm_storeu_si128
#define DTRUN_STREAM _mm_stream_si128
#include "ops/reduce/kernels.inc"
