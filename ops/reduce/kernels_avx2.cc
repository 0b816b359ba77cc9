#include <immintrin.h>

#define DTRUN_KERNELS kAvx2Kernels
#define DTRUN_VECTOR __m256i
#define DTRUN_LOAD _mm256_loadu_si256
#define DTRUN_STORE _mm256_storeu_si256
#define DTRUN_STREAM _mm256_stream_si256
#include "ops/reduce/kernels.inc"
