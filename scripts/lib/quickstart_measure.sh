# shellcheck shell=bash
# What the quickstart measures to say how long it takes. The arithmetic is in quickstart_estimate.py.
# Needs common.sh, steps.sh, build.sh and tables.sh.

# The unit in which the work of a build is counted: a file like most. It includes no header of a package, as
# packages are installed later.
measured_file=runtime/reducer/bucketed_reducer.cc
source_folders=(base gpu launcher models ops runtime)

now_ms() { local now=${EPOCHREALTIME/[^0-9]/} && echo $((now / 1000)); }
seconds_since() { # seconds_since MILLISECONDS: "2.417"
  local ms=$(($(now_ms) - $1))
  printf '%d.%03d' $((ms / 1000)) $((ms % 1000))
}

can_compile() { command -v g++ >/dev/null && command -v python3 >/dev/null && [[ -e $measured_file ]]; }

compile_once() { g++ -std=c++20 -O2 -fPIC -I. -Iinclude "$@" "$measured_file" -o /dev/null; }

# On all cores at once, as a build does: what cores share slows them down here as well. Writes the seconds to a file.
time_compiler() { # time_compiler FILE
  local i start compilers=()
  compile_once -E # reads compiler and headers from the disk
  start=$(now_ms)
  for ((i = 0; i < $(nproc); i++)); do
    compile_once -c &
    compilers+=($!)
  done
  for i in "${compilers[@]}"; do wait "$i"; done
  seconds_since "$start" >"$1"
}

# Something is built already; how much, Bazel alone knows.
has_build() { [[ -e bazel-bin ]] && command -v bazel >/dev/null; }

nothing_to_build() {
  local targets
  mapfile -t targets < <(installed_targets)
  bazel_quietly build --check_up_to_date "${targets[@]}"
}

# Says how long the build takes; sets `build_said` to what the last page of the quickstart repeats of it.
announce_build() {
  local facts=() limit="" estimate unit_s
  if has_build; then
    aside "looking at what is built" built nothing_to_build
    if ((step_status == 0)); then
      say "      all is built already"
      build_said="nothing to build, "
      return
    fi
    facts+=(--partly)
    limit="at most "
  fi
  aside "measuring the compiler" compiler time_compiler "$log_dir/unit_s"
  if ((step_status != 0)); then
    say "      how long building takes is unknown: $measured_file did not compile (${log#"$repo/"})"
    build_said=""
    return
  fi
  if has_cuda; then facts+=(--cuda); fi
  unit_s=$(<"$log_dir/unit_s")
  estimate=$(python3 scripts/lib/quickstart_estimate.py build --unit-s "$unit_s" --cores "$(nproc)" \
    --source-files "$(find "${source_folders[@]}" -name '*.cc' | wc -l)" "${facts[@]}")
  # shellcheck disable=SC2034 # the quickstart's
  build_said="announced $limit$(duration "${estimate%%$'\n'*}"), "
  say "      ${estimate#*$'\n'}"
}

# Five epochs of one step on two ranks: the same program on the same device as the training itself.
time_training() { # time_training BATCH
  local start
  start=$(now_ms)
  dist/bin/dtrun -np 2 dist/bin/cnn_fmnist --epochs 5 --steps-per-epoch 1 --batch-size "$1" --verbose 0 \
    --data-dir "$sample_dir" --json "$log_dir/speed.json"
  seconds_since "$start" >"$log_dir/speed_s"
}

# A fast machine is done with small batches too soon to tell its speed: it gets those of the training.
measure_training() {
  local seconds
  python3 scripts/lib/quickstart_sample.py "$data_dir" "$sample_dir" >"$log_dir/images"
  time_training 256
  seconds=$(<"$log_dir/speed_s")
  if ((${seconds%.*} < 2)); then time_training 1024; fi
}

# Says how long training and comparing take; sets `training_said` likewise, and `compare_batch` and `compare_steps`, with which
# the comparison fits into the time.
announce_training() {
  local estimate seconds train_images test_images
  aside "measuring the speed of training" speed measure_training
  if ((step_status != 0)); then
    complain "quickstart: ${title##*  }: failed with exit code $step_status"
    step_failed
  fi
  read -r train_images test_images <"$log_dir/images"
  estimate=$(python3 scripts/lib/quickstart_estimate.py training --probe "$log_dir/speed.json" \
    --probe-s "$(<"$log_dir/speed_s")" --train-images "$train_images" --test-images "$test_images")
  # shellcheck disable=SC2034 # the quickstart's
  read -r seconds compare_batch compare_steps <<<"${estimate%%$'\n'*}"
  # shellcheck disable=SC2034
  training_said="announced $(duration "$seconds"), "
  say "      ${estimate#*$'\n'}"
}
