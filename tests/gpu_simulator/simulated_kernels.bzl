"""`simulated_kernels`: a .cu file compiled for the CPU, as a part of the simulated driver."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//scripts/bazel:cuda.bzl", "NEEDS_CUDA")

def simulated_kernels(name, src, hdrs = []):
    """The kernels of a .cu file that cuda_kernels compiles for GPUs.

    Args:
      name: the target.
      src: the file.
      hdrs: libraries with what it includes besides gpu/kernel.h.
    """
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [name + ".cc"],
        cmd = "cp $< $@",
    )
    cc_library(
        name = name,
        srcs = [name + ".cc"],
        # CUDA's headers cast as they like.
        copts = [
            "-include",
            "tests/gpu_simulator/device_code.h",
            "-Wno-unused-parameter",
        ],
        target_compatible_with = NEEDS_CUDA,
        deps = hdrs + [":device_code"],
        alwayslink = True,
    )
