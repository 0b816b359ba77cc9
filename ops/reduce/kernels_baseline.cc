#define DTRUN_KERNEL_TABLE kBaselineKernels
#include "ops/reduce/kernels.inc"
