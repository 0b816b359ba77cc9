#ifndef DTRUN_MODELS_FUNCTION_CLONES_H_
#define DTRUN_MODELS_FUNCTION_CLONES_H_

/// Put DTRUN_KERNEL before the definition of a kernel. The compiler then makes the kernel for
/// AVX-512, for AVX2 and for the baseline, and the loader picks a version for the CPU. All
/// functions that the kernel calls must be inlined into it (DTRUN_KERNEL_PART). Otherwise they are
/// compiled only for the baseline.
///
/// With sanitizers, which cannot run the loader's choice, and with other compilers and CPUs, there
/// is only the baseline.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DTRUN_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DTRUN_KERNEL
#endif

#define DTRUN_KERNEL_PART __attribute__((always_inline)) inline

#endif
