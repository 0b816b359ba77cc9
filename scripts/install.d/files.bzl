"""What is installed, by its place below PREFIX. Bazel reads this file, and so does scripts/install, a line at a time.

Besides come the public headers, all of include/dtrun, and every `*.in` of this folder: it is installed at the place that
it has here, without the `.in` and with @version@ filled in.
"""

# Targets that the quickstart runs: the launcher with its helpers, the library and the example.
CORE_FILES = {
    "lib/libdtrun.so.0": "//runtime:libdtrun.so.0",
    "lib/libdtrun_mpi.so": "//runtime:libdtrun_mpi.so",
    "lib/libdtrun_mpich.so": "//runtime:libdtrun_mpich.so",
    "lib/libdtrun_ucx.so": "//runtime:libdtrun_ucx.so",
    "libexec/dtrun/dtrun_agent": "//launcher:dtrun_agent",
    "libexec/dtrun/dtrun_daemon": "//launcher:dtrun_daemon",
    "libexec/dtrun/dtrun_listen.so": "//launcher:dtrun_listen.so",
    "libexec/dtrun/dtrun_local": "//launcher:dtrun_local",
    "libexec/dtrun/dtrun_probe": "//launcher:dtrun_probe",
    "libexec/dtrun/dtrun_rank": "//launcher:dtrun_rank",
    "libexec/dtrun/dtrun_reach": "//launcher:dtrun_reach",
    "bin/dtrun": "//launcher:dtrun",
    "share/bash-completion/completions/dtrun": "//launcher:dtrun.bash",
    "share/man/man1/dtrun.1": "//docs:man/dtrun.1",
    "bin/cnn_fmnist": "//models:cnn_fmnist",
    "share/man/man1/cnn_fmnist.1": "//docs:man/cnn_fmnist.1",
    "share/bash-completion/completions/cnn_fmnist": "//docs:completion/cnn_fmnist.bash",
}

# All other targets: the training library, more programs, benchmarks.
MORE_FILES = {
    "lib/libdtrun_models.so.0.1": "//models/library:libdtrun_models.so.0.1",
    "bin/synthetic_benchmark": "//models:synthetic_benchmark",
    "bin/predict": "//models:predict",
    "share/bash-completion/completions/synthetic_benchmark": "//docs:completion/synthetic_benchmark.bash",
    "share/bash-completion/completions/predict": "//docs:completion/predict.bash",
    "bin/all_reduce_perf": "//bench:all_reduce_perf",
    "bin/gradient_perf": "//bench:gradient_perf",
    "bin/model_perf": "//bench:model_perf",
    "bin/named_perf": "//bench:named_perf",
    "bin/overlap_perf": "//bench:overlap_perf",
}

INSTALLED_FILES = dict(CORE_FILES, **MORE_FILES)

# Folders that a target makes.
MORE_FOLDERS = {
    "include/dtrun/models": "//models/library:headers",
}

# Symbolic links, and what they point to. The linker takes libdtrun.so; programs then ask for the soname.
CORE_LINKS = {
    "lib/libdtrun.so": "libdtrun.so.0",
}

MORE_LINKS = {
    "lib/libdtrun_models.so": "libdtrun_models.so.0.1",
}
