#include <immintrin.h>

static constexpr unsigned long kHalfLanes = 16;

// The masked forms, because GCC 12 warns of an uninitialised vector in the plain forms.
static constexpr __mmask16 kAll = 0xffff;

static inline void WidenHalves(const unsigned short* from, float* to) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps(kAll, halves));
}

static inline void NarrowHalves(const float* from, unsigned short* to) {
  const __m256i halves =
      _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}

#define DTRUN_KERNELS kAvx512Kernels
#define DTRUN_VECTOR __m512i
#define DTRUN_LOAD _mm512_loadu_si512
#define DTRUN_STORE _mm512_storeu_si512
#define DTRUN_STREAM _mm512_stream_si512
#include "ops/reduce/kernels.inc"
