#include <immintrin.h>

#define DTRUN_KERNELS kAvx512Kernels
#define DTRUN_VECTOR __m512i
#define DTRUN_LOAD _mm512_loadu_si512
#define DTRUN_STORE _mm512_storeu_si512
#define DTRUN_STREAM _mm512_stream_si512
#include "ops/reduce/kernels.inc"
