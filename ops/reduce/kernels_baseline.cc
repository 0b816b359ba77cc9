#include <immintrin.h>

#define DTRUN_KERNELS kBaselineKernels
#define DTRUN_VECTOR __m128i
#define DTRUN_LOAD _mm_loadu_si128
#define DTRUN_STORE _mm_storeu_si128
#define DTRUN_STREAM _mm_stream_si128
#include "ops/reduce/kernels.inc"
