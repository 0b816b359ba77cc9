#!/usr/bin/env bash
# The estimates, measurements and final report of the quickstart. The compiler, Bazel and dtrun are stand-ins: no story compiles
# or trains. packages_test.sh covers missing packages.
source tests/scripts/stories.sh

estimate() { run python3 "$tree/scripts/lib/quickstart_estimate.py" "$@"; }

build_time() {
  # Each of 436 files takes 0.61 units of 6 s, on 2 cores. Bazel's start takes 4 units: (4 + 266 / 2) * 6 s = 822 s.
  estimate build --unit-s 6 --cores 2 --source-files 436
  expect_equal "$output" $'810\nbuilding takes about 13 min 30 s on these 2 cores, measured: one file in 6.0 s'
  estimate build --unit-s 6 --cores 1 --source-files 436 --partly
  expect_output "building takes at most about 27 min on this one core (a part of it is built already)"
  # (4 + (266 + 55) / 2) * 6 s
  estimate build --unit-s 6 --cores 2 --source-files 436 --cuda
  expect_output "about 16 min 30 s on"
}
story "the build estimate is the time of one file times the number of files over the cores" build_time

many_cores() {
  estimate build --unit-s 2 --cores 1000 --source-files 436
  expect_equal "${output%%$'\n'*}" 30 # (4 + 11) * 2 s
  estimate build --unit-s 2 --cores 1000 --source-files 436 --cuda
  expect_equal "${output%%$'\n'*}" 70 # (4 + 31) * 2 s
}
story "with many cores, the longest file decides the build estimate" many_cores

training_time() {
  cat >probe.json <<'JSON'
{"epochs": [{"images_per_s": 100, "seconds": 5.12}, {"images_per_s": 1200, "seconds": 0.4},
            {"images_per_s": 1300, "seconds": 0.4}, {"images_per_s": 9999, "seconds": 0.08}]}
JSON
  # Training: 1 s for the start, and 100 s for two epochs of 60,000 images at 1,300 images/s and 10,000 test images at twice that
  # rate. Comparison: 2 * 1 s for the starts, and 8 epochs of at most 3 s, each of 7 steps of 256 images: 22 s.
  estimate training --probe probe.json --probe-s 7 --train-images 60000 --test-images 10000
  expect_equal "$output" $'130 256 7\ntraining and comparing take about 2 min 10 s, measured: 1,300 images/s on 2 ranks'
}
story "the training estimate comes from the median of the probe without its first epoch" training_time

after_build() {
  cat >all_speeds.py <<'PY'
import sys

sys.path.insert(0, sys.argv[1])
from quickstart_estimate import plan_comparison, training_seconds

for speed in [1000, 1100, 1300, 2000, 5300, 20000, 1e6]:  # of both ranks together
    for start_s in (0.5, 1, 3):
        probe_s = start_s + 5 * 512 / speed
        train_s = training_seconds(speed, start_s, 60000, 10000)
        batch, steps, compare_s = plan_comparison(speed, start_s, 60000, probe_s + train_s)
        assert probe_s + train_s + compare_s <= 150, (speed, start_s, probe_s, train_s, compare_s)
        assert 1 <= steps and 2 * steps * batch <= 60000, (speed, batch, steps)
        assert abs(compare_s - 2 * start_s - 8 * steps * batch / (speed / 2)) < 1e-6, (speed, compare_s)
assert plan_comparison(233, 1, 60000, 520)[:2] == (256, 1), "the smallest comparison where time is short"
assert plan_comparison(5300, 1, 100, 30)[:2] == (1024, 1), "a data set of 100 images"
PY
  run python3 all_speeds.py "$tree/scripts/lib"
  expect_status 0
}
story "at 500 images/s per core or more, all steps after the build take at most 150 s" after_build

# An IDX data set of 3,000 and 300 images of 2 x 2 pixels.
small_data() {
  mkdir ../data
  python3 - <<'PY'
import gzip, struct

for name, count in (("train", 3000), ("t10k", 300)):
    with gzip.open(f"../data/{name}-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">4I", 0x803, count, 2, 2) + bytes(4 * count))
    with gzip.open(f"../data/{name}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">2I", 0x801, count) + bytes(count))
PY
}

# A clone with all packages, and a stand-in for Bazel that takes no time. If $PWD/../built exists, everything was built before.
quick_clone() {
  machine && fresh_clone && small_data
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool g++ <<<'echo "$*" >>../compiled'
  tool nproc <<<'echo 2'
  export DTRUN_CUDA=0
  mkdir -p base gpu launcher models ops runtime/reducer include/dtrun/detail
  touch {base,launcher,models}/one.cc runtime/reducer/bucketed_reducer.cc include/dtrun/dtrun.h include/dtrun/detail/part.h
  echo 'inline constexpr char kVersion[] = "1.2.3";' >base/version.h
  local target
  source scripts/lib/common.sh
  source scripts/lib/tables.sh
  while read -r _ target; do
    mkdir -p "build_result/$(target_path "$(dirname "${target//:/\/}")")"
    cp /bin/true "build_result/$(target_path "$target")"
  done < <(installed FILES)
  while read -r _ target; do mkdir -p "build_result/$(target_path "$target")"; done < <(installed FOLDERS)
  dtrun_actor >build_result/launcher/dtrun
  # A build creates the link bazel-bin.
  tool bazel <<<'if [[ $* == *--check_up_to_date* ]]; then [[ -e ../built ]]; else ln -sfn build_result bazel-bin; fi'
}

# A stand-in for dtrun that reports 600 images/s per rank and takes no time.
dtrun_actor() {
  cat <<'PY'
#!/usr/bin/env python3
import json, sys

words = sys.argv[1:]
option = lambda name, default=None: words[words.index(name) + 1] if name in words else default
with open("../calls", "a") as calls:
    print(*words, file=calls)
ranks = int(option("-np"))
print(f"[1,0]<stdout>:Compute     CPU, an actor's, of {ranks}")
epoch = {"loss": 0.5, "seconds": 0.0, "images_per_s": 600.0 * ranks}
with open(option("--json"), "w") as file:
    json.dump({"ranks": ranks, "test_accuracy": 0.84, "parameter_digest": "12ab", "epochs": [epoch] * int(option("--epochs"))}, file)
PY
}

whole_quickstart() {
  quick_clone
  run scripts/quickstart --data-dir ../data
  expect_status 0
  expect_output $'\n      building takes about 5 s on these 2 cores, measured: one file in 0.'
  expect_output $'\n      training and comparing take about '
  expect_output ", measured: 1,200 images/s on 2 ranks"
  [[ $output =~ "  build                    announced "5\ s", took "[0-9]+" s" ]] || unmet "both times of the build"
  [[ $output =~ "  training and comparing   announced "[0-9]+" s, took "[0-9]+" s" ]] || unmet "both times of the training"
  expect_output "computed on CPU, an actor's, of 2"
  expect_output "median of three times 5 steps of 256 images"
  expect_output "efficiency 100.0%"
  expect_equal "$(grep -c -e '--steps-per-epoch 5 --batch-size 256' ../calls)" 2 # of 3,000 images, 1 and 2 ranks
  expect_equal "$(grep -c -e '-c runtime/reducer/bucketed_reducer.cc' ../compiled)" 2
}
story "the final report lists announced and measured times side by side" whole_quickstart

without_gpu() {
  quick_clone
  unset DTRUN_CUDA
  mkdir -p ../cuda/{include,bin}
  touch ../cuda/include/cuda.h ../cuda/bin/nvcc
  export CUDA_HOME=$PWD/../cuda
  tool bazel <<<'echo "CUDA ${DTRUN_CUDA:-as found}: $*" >>../built_with; ln -sfn build_result bazel-bin'
  run scripts/quickstart --data-dir ../data
  expect_status 0
  if [[ -e /dev/nvidiactl || -e /dev/dxg ]]; then return; fi
  expect_output "This machine has CUDA but no GPU, so the build leaves CUDA out"
  ! grep -v '^CUDA 0:' ../built_with || unmet "that Bazel always hears of it"
  ! grep -E '_perf|predict|libdtrun_models' ../built_with || unmet "that only what runs is built"
}
story "the quickstart builds only the programs that it runs, and for GPUs only if there is one" without_gpu

sample() {
  quick_clone
  run scripts/quickstart --data-dir ../data
  expect_equal "$(grep -c -e "--data-dir $PWD/build/quickstart_sample" ../calls)" 4 # the probes, 1 and 2 ranks
  expect_equal "$(grep -c -e "--data-dir $(cd ../data && pwd)" ../calls)" 1 # the training
  expect_equal "$(stat -c %s build/quickstart_sample/t10k-images-idx3-ubyte)" $((16 + 4 * 200))
  cmp build/quickstart_sample/train-images-idx3-ubyte.gz ../data/train-images-idx3-ubyte.gz
}
story "short measurements use a small sample of the test images" sample

built_before() {
  quick_clone
  run scripts/quickstart --data-dir ../data
  rm ../compiled
  run scripts/quickstart --data-dir ../data
  expect_output "building takes at most about 5 s on these 2 cores (a part of it is built already)"
  expect_output "announced at most 5 s, took"
  touch ../built
  rm ../compiled
  run scripts/quickstart --data-dir ../data
  expect_output "all is built already"
  expect_no_output "building takes"
  expect_output "  build                    nothing to build, took"
  [[ ! -e ../compiled ]] || unmet "that nothing is compiled"
}
story "the quickstart announces no build if everything is built" built_before

no_compiler() {
  quick_clone
  rm "$machine/g++"
  tool apt-get <<SH
if [[ \$* == *"install -q"* ]]; then echo exit 0 >$machine/g++ && chmod +x $machine/g++; fi
SH
  tool dpkg-query <<<"[[ \$* != *g++* || -e $machine/g++ ]] && printf 'install ok installed'"
  tool dpkg <<<'exit 0'
  tool id <<<'echo 0'
  run scripts/quickstart --yes --data-dir ../data
  expect_status 0
  [[ $output == *"once there is a compiler"*"[1/5] Debian packages ... done"*"building takes about"*"[2/5]"* ]] ||
    unmet "the build's time between the first step and the second"
}
story "without a compiler, the build estimate follows the installation of packages" no_compiler

broken_compiler() {
  quick_clone
  tool g++ <<<'echo no memory >&2; exit 1'
  run scripts/quickstart --data-dir ../data
  expect_status 0
  expect_output "how long building takes is unknown: runtime/reducer/bucketed_reducer.cc did not compile (build/log/quickstart/compiler.log)"
  expect_output "  build                    took"
}
story "a failing estimate does not stop the quickstart" broken_compiler

no_data() {
  quick_clone
  rm ../data/t10k-labels*
  run scripts/quickstart --data-dir ../data
  expect_status 2
  expect_output "quickstart: --data-dir: '$(cd ../data && pwd)' has no t10k-labels-idx1-ubyte.gz"
  expect_no_output "[1/5]"
  : >../data/t10k-labels-idx1-ubyte
  run scripts/quickstart --data-dir ../data
  expect_status 1
  expect_output "the data set cannot be read"
  expect_output "Run scripts/quickstart again"
  expect_no_output "Traceback"
}
story "a missing data set is reported before the build, and a broken one before the training" no_data

interrupted_measurement() {
  quick_clone
  tool g++ <<<'[[ $* == *-E* ]] || { echo $$ >>../compilers; exec sleep 1000; }'
  scripts/quickstart --data-dir ../data >../out 2>&1 </dev/null &
  local script=$!
  until [[ -e ../compilers && $(wc -l <../compilers) == 2 ]]; do sleep 0.1; done
  kill -TERM $script
  status=0
  wait $script || status=$?
  output=$(<../out)
  expect_status 143
  expect_output "quickstart: interrupted before the first step"
  while read -r process; do
    [[ ! -e /proc/$process ]] || unmet "that process $process has ended"
  done <../compilers
}
story "an interrupt ends the measurement" interrupted_measurement

wrong_words() {
  quick_clone
  run scripts/quickstart ../data
  expect_status 2
  expect_last_line "quickstart: unknown argument '../data'; see scripts/quickstart --help"
  run scripts/quickstart --data-dir
  expect_status 2
  expect_last_line "quickstart: --data-dir: the folder is missing"
  run scripts/quickstart --help
  expect_status 0
  expect_output "Usage: scripts/quickstart"
  [[ ! -e build ]] || unmet "no folder build"
}
story "wrong arguments are refused before the first step" wrong_words

end_of_stories
