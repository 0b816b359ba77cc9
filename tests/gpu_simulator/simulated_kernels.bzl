"""`simulated_kernels`: .cu files compiled for the CPU, as a part of the simulated driver."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//scripts/bazel:cuda.bzl", "NEEDS_CUDA")

def simulated_kernels(name, srcs, hdrs):
    """The kernels of .cu files that cuda_kernels compiles for GPUs.

    Args:
      name: the target.
      srcs: the files, each with a name of its own.
      hdrs: libraries with what they include besides gpu/kernel.h.
    """
    files = [src.split(":")[-1].replace(".cu", ".cc") for src in srcs]
    native.genrule(
        name = name + "_sources",
        srcs = srcs,
        outs = [name + "/" + file for file in files],
        cmd = "for file in $(SRCS); do cp $$file $(RULEDIR)/%s/$$(basename $$file .cu).cc; done" % name,
    )
    cc_library(
        name = name,
        srcs = [name + "/" + file for file in files],
        # CUDA's headers do not follow all warnings of this project. __fmul_rn rounds its product.
        copts = [
            "-ffp-contract=off",
            "-include",
            "tests/gpu_simulator/device_code.h",
            "-Wno-unused-parameter",
        ],
        target_compatible_with = NEEDS_CUDA,
        # The files of several folders define the same names.
        unity = False,
        deps = hdrs + [":device_code"],
        alwayslink = True,
    )
