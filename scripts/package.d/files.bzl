"""What scripts/package puts into the archive besides what is installed (scripts/install.d/files.bzl). Bazel reads this file, and
so does scripts/package, a line at a time.

A program comes into checks/, at the place of its target: //tests/ops:ops_test is checks/tests/ops/ops_test. Beside it lie the
installed programs by the names that tests know them by (checks/launcher/dtrun), so a test runs with checks/ as its folder. What is
to be run on a machine with GPUs is a line here and a row of scripts/gpu_check.
"""

PACKAGED_PROGRAMS = [
    "//bench:checkpoint_perf",
    "//bench:elastic_perf",
    "//bench:init_perf",
    "//bench:input_perf",
    "//bench:overhead_perf",
    "//bench:parameter_server_perf",
    "//bench:strategy_perf",
    "//bench:timeline_perf",
    "//tests/models/layers:layers_test",
    "//tests/models/optim:optimizers_test",
    "//tests/ops:ops_slow_test",
    "//tests/ops:ops_test",
    "//tests/ranks:conformance",
    "//tests/ranks:in_vain",
    "//tests/ranks:local_test",
    "//tests/ranks:misbehave",
    "//tests/ranks:named",
    "//tests/ranks:sharded",
]

# The same, where the CUDA toolkit has been found.
PACKAGED_GPU_PROGRAMS = [
    "//bench:gpu_all_reduce_perf",
    "//bench:gpu_cnn_perf",
    "//tests/gpu:gpu_test",
    "//tests/models/gpu:gpu_network_test",
    "//tests/models/gpu:gpu_parts_test",
    "//tests/ops/cuda:cuda_test",
    "//tests/ops/cuda:device_rank",
    "//tests/ops/cuda:many_gpus_test",
    "//tests/ranks:gpu_sgd",
    "//tests/runtime:device_gradients_test",
]

# Files of the repository, or folders of files, at the places that they have there.
PACKAGED_SOURCES = [
    "bench/peers/common.py",
    "bench/peers/torch_cnn.py",
    "python/dtrun",
    "scripts/gpu_check",
    "scripts/lib/gpu_machine.py",
    "tests/python/cases.py",
    "tests/python/torch_cases.py",
]
