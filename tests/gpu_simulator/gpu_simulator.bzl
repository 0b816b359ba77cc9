"""`simulated_gpu_test`: a test on the simulated GPU."""

load("@rules_cc//cc:defs.bzl", "cc_test")
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

def simulated_gpu_test(name, data = SIMULATED_GPU, gpus = None, env = {}, target_compatible_with = [], **kwargs):
    """A test that is skipped where the CUDA toolkit is not found.

    Args:
      name: the target.
      data: the simulated libraries, and what else the test needs.
      gpus: the number of simulated GPUs; without one, the simulator's own default.
      env: more variables.
      target_compatible_with: what it needs besides CUDA.
      **kwargs: as in cc_test.
    """

    # The simulated libraries come before the machine's own. The path is relative to the folder where Bazel starts tests.
    variables = dict({"LD_LIBRARY_PATH": "tests/gpu_simulator"}, **env)
    if gpus:
        variables["DTRUN_SIMULATED_GPUS"] = str(gpus)
    cc_test(
        name = name,
        data = data,
        env = variables,
        target_compatible_with = target_compatible_with + NEEDS_CUDA,
        **kwargs
    )
