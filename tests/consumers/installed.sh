# shellcheck shell=bash
# Installs dtrun with the real scripts/install from the files that Bazel built for this test, and then moves the installed
# tree. Needs stories.sh.

# Compilers, Open MPI and Bazel write no files elsewhere.
export TMPDIR=$TEST_TMPDIR HOME=$TEST_TMPDIR

# Sets `prefix`.
install_and_move() {
  local folder=$TEST_TMPDIR/installed status=0
  mkdir "$folder"
  set +e
  (set -e && cd "$folder" && install_from_runfiles "$folder/first") >"$folder/log" 2>&1
  status=$?
  set -e
  if ((status != 0)); then
    echo "FAIL  scripts/install:"
    sed 's/^/        /' "$folder/log"
    exit 1
  fi
  prefix=$TEST_TMPDIR/moved/dtrun
  mkdir "$TEST_TMPDIR/moved"
  mv "$folder/first" "$prefix"
}

# Stand-ins for the tools, because all targets are built and all packages are present.
install_from_runfiles() { # install_from_runfiles PREFIX
  machine && fresh_clone
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  ln -s "$tree" bazel-bin
  cp -rL "$tree/include" "$tree/base" .
  scripts/install "$1"
}

# Copies the sources of a trainer in C++ and of a trainer in C.
trainer_sources() {
  cp -L "$tree/tests/consumers/consumer.cc" trainer.cc
  cp -L "$tree/examples/sgd_c99.c" trainer.c
}

# Sets `flags` to the flags of the installed pkg-config file.
pkg_config_flags() {
  read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs dtrun)
}

# The headers for trainers, and those of the training library. Headers for another library need that library; their own tests
# compile them.
trainer_headers() { (cd "$prefix/include" && printf '%s\n' dtrun/*.h dtrun/detail/*.h | grep -vE '/(mpi|torch[^/]*)\.h$'); }
models_headers() { (cd "$prefix/include" && find dtrun/models -name '*.h'); }
trainer_warnings=(-std=c++17 -Wall -Wextra -Werror -Wconversion -pedantic -Wshadow -Wold-style-cast)
models_warnings=(-std=c++20 -Wall -Wextra -Werror -Wshadow)

# With GCC, and if it is there with Clang. headers_test.sh compiles each alone.
all_together() { # all_together FLAG...: the headers of the file `headers`
  local compiler
  (($(wc -l <headers) >= 10)) || unmet "ten headers at least, got $(cat headers)"
  sed 's/.*/#include <&>/' headers >all.cc
  for compiler in g++ clang++; do
    if ! command -v $compiler >/dev/null; then continue; fi
    $compiler "$@" -I"$prefix/include" -fsyntax-only all.cc
  done
}

# Runs a second Bazel, because the Bazel that runs this test is busy. The stand-ins of dtrun's own build replace downloads. The
# rc files of this machine's users are not read.
own_bazel() { # own_bazel ARGUMENT...: prints as Bazel does
  local real stand_ins=()
  real=$(dirname "$(dirname "$(readlink -f "$tree/scripts/install")")")
  for library in rules_cc rules_java remote_coverage_tools; do
    stand_ins+=("--override_repository=$library=$real/scripts/bazel/$library")
  done
  limit_s=120 run env -u TEST_TMPDIR bazel --nohome_rc --output_user_root="$TEST_TMPDIR/bazel" --max_idle_secs=15 \
    "$1" "${stand_ins[@]}" "${@:2}"
}

# Check the output of the two trainers, alone and as two ranks of the installed dtrun.
expect_trainer_runs() { # expect_trainer_runs PROGRAM
  run "$1"
  expect_equal "$output" "1: self"
  run "$prefix/bin/dtrun" --tag none -np 2 "$1"
  expect_equal "$output" "2: shm"
  expect_status 0
}

expect_c_trainer_runs() { # expect_c_trainer_runs PROGRAM
  run "$1"
  expect_equal "$output" "1 ranks agree on y = 3.00 x -2.00"
  run "$prefix/bin/dtrun" --tag none -np 2 "$1"
  expect_equal "$output" "2 ranks agree on y = 3.00 x -2.00"
  expect_status 0
}

# Checks the output of the program that uses the training library.
expect_network_learns() { # expect_network_learns PROGRAM
  run "$1"
  expect_equal "$output" "1 learnt"
  run "$prefix/bin/dtrun" --tag none -np 2 "$1"
  expect_equal "$output" "2 learnt"
  expect_status 0
}
