#include <immintrin.h>

static constexpr unsigned long kHalfLanes = 8;

static inline void WidenHalves(const unsigned short* from, float* to) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  _mm256_storeu_ps(to, _mm256_cvtph_ps(halves));
}

static inline void NarrowHalves(const float* from, unsigned short* to) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

#define DTRUN_KERNELS kAvx2Kernels
#define DTRUN_VECTOR __m256i
#define DTRUN_LOAD _mm256_loadu_si256
#define DTRUN_STORE _mm256_storeu_si256
#define DTRUN_STREAM _mm256_stream_si256
#include "ops/reduce/kernels.inc"
