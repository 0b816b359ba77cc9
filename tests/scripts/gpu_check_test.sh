#!/usr/bin/env bash
# scripts/gpu_check on an archive of stand-in programs, with and without a simulated GPU.
source tests/scripts/stories.sh

# An unpacked archive. It holds only the programs that a story adds.
archive() {
  mkdir -p archive/{scripts/lib,bench/peers} archive/checks/{launcher,models,bench,tests/{ops/cuda,ranks,models/{layers,optim}}}
  cp -L "$tree/scripts/gpu_check" archive/scripts/
  cp -L "$tree/scripts/lib/gpu_machine.py" archive/scripts/lib/
  printf '# no program\n' >archive/bench/peers/torch_cnn.py
}

program() { # program PLACE: its text from standard input
  { echo '#!/bin/sh' && cat; } >"archive/checks/$1"
  chmod +x "archive/checks/$1"
}

# A simulated driver. CODE is the result of cuInit, COUNT the number of GPUs.
driver() { # driver CODE COUNT
  mkdir -p driver
  cat >driver/cuda.c <<C
int cuInit(unsigned flags) { return flags != 0 ? 1 : $1; }
int cuDeviceGetCount(int* count) { *count = $2; return 0; }
int cuGetErrorString(int code, const char** text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : "some error";
  return 0;
}
C
  cc -shared -fPIC -o driver/libcuda.so.1 driver/cuda.c
  export LD_LIBRARY_PATH=$PWD/driver
}

gpu_check() { limit_s=60 run archive/scripts/gpu_check --data-dir . --json found.json "$@"; }

# Prints a field of a row in the JSON file.
field() { python3 -c 'import json, sys; print({row["id"]: row for row in json.load(open("found.json"))["rows"]}[sys.argv[1]][sys.argv[2]])' "$@"; }
top() { python3 -c 'import json, sys; print(json.load(open("found.json"))[sys.argv[1]])' "$@"; }

verdicts() {
  archive
  driver 100 0
  program launcher/dtrun <<<'case "$*" in *conformance) echo a host is missing; exit 69 ;; *named) echo "No tests ran" ;; *) echo all is well ;; esac'
  touch archive/checks/tests/ranks/{conformance,named}
  program tests/ops/ops_test <<<'echo about to fail; echo 1 wrong >&2; exit 3'
  program tests/ops/ops_slow_test <<<'kill -SEGV $$'
  program tests/models/layers/layers_test <<<'echo "SKIPPED: there is no oneDNN"; echo "All tests passed (4 assertions in 3 test cases)"'
  program tests/models/optim/optimizers_test <<<'echo "SKIPPED: no AVX"; echo "test cases: 1 | 1 passed"'
  gpu_check
  expect_status 1
  expect_equal "$(field version verdict) $(field version exit_code)" "passed 0"
  expect_equal "$(field version output_tail)" "all is well"
  expect_equal "$(field reductions verdict): $(field reductions reason)" "failed: exit code 3; last: 1 wrong"
  expect_equal "$(field conformance reason)" "SIGSEGV; last: it printed nothing"
  expect_equal "$(field conformance_2 verdict): $(field conformance_2 reason)" "failed: exit code 69; last: a host is missing"
  expect_equal "$(field named_2 verdict): $(field named_2 reason)" "failed: it has no such test case"
  expect_equal "$(field layers verdict): $(field layers reason)" "passed: 1 of its cases skipped: there is no oneDNN"
  expect_equal "$(field optimizers verdict): $(field optimizers reason)" "skipped: no AVX"
  expect_equal "$(field cnn_cpu verdict): $(field cnn_cpu reason)" "skipped: models/cnn_fmnist: not in this archive"
  expect_output "reductions failed: exit code 3; last: 1 wrong"
  expect_last_line "$(top passed) passed, 5 failed, $(top skipped) skipped"
}
story "the table and the JSON file give the verdict of each row with a reason" verdicts

no_gpu() {
  archive
  driver 100 0
  program launcher/dtrun <<<'exit 0'
  program tests/ops/cuda/cuda_test <<<'touch ../ran; exit 1'
  gpu_check
  expect_status 0
  for row in gpu_ops cuda_ipc_2 nccl_1 memcheck_ops gpu_cnn_perf torch_cnn; do
    expect_equal "$(field $row verdict): $(field $row reason)" "skipped: cuInit: no CUDA-capable device is detected"
  done
  [[ ! -e archive/ran ]] || unmet "that no test of a GPU runs"
  expect_output "# GPU: none (cuInit: no CUDA-capable device is detected)"
  driver 0 0
  gpu_check --only gpu_ops
  expect_equal "$(field gpu_ops reason)" "the driver lists no GPU"
}
story "without a GPU, every GPU row is skipped with the driver's reason" no_gpu

gpu_rows() {
  archive
  driver 0 1
  program launcher/dtrun <<<'echo "$*"'
  program tests/ops/cuda/cuda_test <<<'echo "All tests passed (4 assertions in 3 test cases)"'
  program bench/gpu_cnn_perf <<<'echo "[{\"batch\": 64, \"images_per_s\": 300}, {\"dtype\": \"f16\", \"images_per_s\": 950.5}]" >"$2"'
  program bench/gpu_all_reduce_perf <<<'exit 0'
  cat >archive/bench/peers/torch_cnn.py <<'PY'
import json, sys
json.dump({"best": {"images_per_s": 200}}, open(sys.argv[-1], "w"))
PY
  gpu_check
  expect_status 1
  expect_equal "$(field cuda_ipc verdict)" passed
  expect_equal "$(field gpu_models verdict): $(field gpu_models reason)" "skipped: tests/models/gpu/gpu_network_test: not in this archive"
  expect_equal "$(field gpu_cnn_perf result)" "[{'batch': 64, 'images_per_s': 300}, {'dtype': 'f16', 'images_per_s': 950.5}]"
  expect_equal "$(field gpu_all_reduce_perf verdict): $(field gpu_all_reduce_perf reason)" "failed: it wrote no results"
  expect_equal "$(top ratios)" "{'cnn_fmnist / PyTorch': 1.5}"
  echo 'import sys; sys.exit("torch_cnn: the Python package torch is not installed" if print("no torch") else 69)' >archive/bench/peers/torch_cnn.py
  gpu_check --only torch_cnn
  expect_status 0
  expect_equal "$(field torch_cnn verdict): $(field torch_cnn reason)" "skipped: no torch"
}
story "with a GPU, its rows run, rows without a program are skipped, and benchmarks are compared" gpu_rows

# gpu_check ends the MPS daemon after its row passes, fails or hangs.
mps() {
  archive
  driver 0 1
  mkdir tools
  export PATH=$PWD/tools:$PATH LOG=$PWD/log
  printf '#!/bin/sh\necho "$* $(cat)" >>"$LOG"\n' >tools/nvidia-cuda-mps-control
  chmod +x tools/nvidia-cuda-mps-control
  touch archive/checks/tests/ops/cuda/device_rank
  program launcher/dtrun <<<'[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && echo "job $*" >>"$LOG"'
  gpu_check --only cuda_ipc_mps
  expect_equal "$(field cuda_ipc_mps verdict)" passed
  expect_equal "$(cat log)" $'-d \njob --launcher local --tag none -np 2 --device-backend cuda_ipc tests/ops/cuda/device_rank conform 1 all\n quit -t 5'
  rm log
  program launcher/dtrun <<<'exit 69'
  gpu_check --only cuda_ipc_mps
  expect_equal "$(field cuda_ipc_mps verdict): $(cat log)" $'failed: -d \n quit -t 5'
  rm log
  program launcher/dtrun <<<'exec sleep 1000'
  gpu_check --only cuda_ipc_mps --limit 0.5
  expect_equal "$(field cuda_ipc_mps verdict): $(cat log)" $'failed: -d \n quit -t 5'
  printf '#!/bin/sh\nexit 1\n' >tools/nvidia-cuda-mps-control
  gpu_check --only cuda_ipc_mps
  expect_equal "$(field cuda_ipc_mps verdict): $(field cuda_ipc_mps reason)" "skipped: MPS does not start"
}
story "a daemon started for a row is ended however the row ends" mps

hanging() {
  archive
  program launcher/dtrun <<<'sleep 1000 & echo $! >../child; echo started; trap "" TERM; wait'
  gpu_check --only version --limit 0.5
  expect_status 1
  expect_equal "$(field version verdict): $(field version reason)" "failed: ended after 0.5 s; last: started"
  [[ ! -e /proc/$(cat archive/child) ]] || unmet "that what it started has ended"
}
story "a hanging row is ended at its time limit with all its child processes" hanging

ended_from_outside() {
  archive
  program launcher/dtrun <<<'sleep 1000 & echo $! >../child; mv ../child ../started; wait'
  archive/scripts/gpu_check --data-dir . --only version >out 2>&1 </dev/null &
  local check=$!
  until [[ -e archive/started ]]; do sleep 0.1; done
  kill -TERM $check
  status=0
  wait $check || status=$?
  expect_status 143
  [[ ! -e /proc/$(cat archive/started) ]] || unmet "that what it started has ended"
}
story "SIGTERM to gpu_check ends the running row" ended_from_outside

libraries() {
  archive
  mkdir -p site/nvidia/{cudnn,nccl}/lib
  echo 'int made_up(void) { return 7; }' >made_up.c
  cc -shared -fPIC -o site/nvidia/cudnn/lib/libmade_up.so.9 made_up.c
  # A stand-in for a Python with its packages in site/.
  printf '#!/bin/sh\necho "[\\"%s\\"]"\n' "$PWD/site" >python
  chmod +x python
  cat >look.py <<'PY'
import gpu_machine, os, subprocess, sys
gpu_machine.NVIDIA_LIBRARIES = [["libmade_up.so.9", "libmade_up.so.8"], ["libnowhere.so.1"], ["libc.so.6"]]
environment, libraries = gpu_machine.settle_libraries("archive", os.path.abspath("python"))
assert libraries["libmade_up.so.9"].endswith("/site/nvidia/cudnn/lib"), libraries
assert libraries["libnowhere.so.1"] == "not found", libraries
assert libraries["libc.so.6"] == "the loader finds it", libraries
code = "import ctypes; assert ctypes.CDLL('libmade_up.so.9').made_up() == 7"
subprocess.run([sys.executable, "-c", code], env=environment, check=True)
PY
  run env PYTHONPATH=archive/scripts/lib python3 -B look.py
  expect_status 0
}
story "NVIDIA libraries unknown to the loader are found among the packages of a Python" libraries

made_up_data() {
  archive
  cat >look.py <<'PY'
import gpu_machine, gzip
gpu_machine.write_made_up_data(".", 30, 20)
images = gzip.open("train-images-idx3-ubyte.gz").read()
labels = gzip.open("t10k-labels-idx1-ubyte.gz").read()
assert len(images) == 16 + 30 * 784 and images[:8] == bytes([0, 0, 8, 3, 0, 0, 0, 30]), images[:16]
assert len(labels) == 8 + 20 and max(labels[8:]) < 10, labels
PY
  run env PYTHONPATH=archive/scripts/lib python3 -B look.py
  expect_status 0
}
story "a generated data set has the format of Fashion-MNIST" made_up_data

command_line() {
  archive
  run archive/scripts/gpu_check --only version,nonsense
  expect_status 2
  expect_output "--only: there is no row 'nonsense'; expected some of version, doctor"
  run archive/scripts/gpu_check --data-dir nowhere
  expect_status 2
  expect_output "--data-dir: nowhere is no folder"
  program launcher/dtrun <<<'exit 0'
  run archive/scripts/gpu_check --data-dir . --only version --json nowhere/found.json
  expect_status 73
  expect_output "gpu_check: cannot write nowhere/found.json: No such file or directory"
  rm -r archive/checks
  run archive/scripts/gpu_check
  expect_status 2
  expect_output "archive/bazel-bin is not there; build it with scripts/package --build-only"
}
story "wrong arguments are refused by name" command_line

end_of_stories
