"""A test on the simulated GPU: data = [...] + SIMULATED_GPU, env = SIMULATED_GPU_ENV, target_compatible_with = NEEDS_CUDA."""

load("//scripts/bazel:cuda.bzl", _NEEDS_CUDA = "NEEDS_CUDA")

NEEDS_CUDA = _NEEDS_CUDA

SIMULATED_GPU = [
    "//tests/gpu_simulator:libcuda.so.1",
    "//tests/gpu_simulator:libnccl.so.2",
]

# The libraries that neural networks need too.
SIMULATED_GPU_LIBRARIES = SIMULATED_GPU + [
    "//tests/gpu_simulator:libcublasLt.so.13",
    "//tests/gpu_simulator:libcudnn.so.9",
]

# The simulated libraries come before the machine's own. The path is relative to the folder where Bazel starts tests.
SIMULATED_GPU_ENV = {"LD_LIBRARY_PATH": "tests/gpu_simulator"}
