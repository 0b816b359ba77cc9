#define DTRUN_KERNEL_TABLE kAvx512Kernels
#include "ops/reduce/kernels.inc"
