#ifndef DTRUN_MODELS_FUNCTION_CLONES_H_
#define DTRUN_MODELS_FUNCTION_CLONES_H_

/// In front of a kernel's definition: the compiler makes it for AVX-512, for AVX2 and for the
/// baseline, and the loader picks one by the CPU it finds. Everything such a kernel calls has to be
/// inlined into it (DTRUN_KERNEL_PART), or it is made for the baseline alone.
///
/// Sanitizers cannot run the loader's choice, and other compilers and CPUs take the baseline.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DTRUN_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DTRUN_KERNEL
#endif

#define DTRUN_KERNEL_PART __attribute__((always_inline)) inline

#endif
