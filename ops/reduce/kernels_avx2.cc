#define DTRUN_KERNEL_TABLE kAvx2Kernels
#include "ops/reduce/kernels.inc"
