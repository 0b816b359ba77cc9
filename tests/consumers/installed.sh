# shellcheck shell=bash
# An installed dtrun: the real scripts/install puts there what Bazel has built for this test, and then it is moved.
# Needs stories.sh.

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

# Everything is built already, and every package there.
install_from_runfiles() { # install_from_runfiles PREFIX
  machine && fresh_clone
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  ln -s "$tree" bazel-bin
  cp -rL "$tree/include" "$tree/base" .
  scripts/install "$1"
}

# The sources of a trainer in C++ and of one in C.
trainer_sources() {
  cp -L "$tree/tests/consumers/consumer.cc" trainer.cc
  cp -L "$tree/examples/sgd_c99.c" trainer.c
}

# Sets `flags` to what the installed pkg-config file says.
pkg_config_flags() {
  read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs dtrun)
}

# What the two trainers print, alone and as two ranks of the installed dtrun.
expect_trainer_runs() { # expect_trainer_runs PROGRAM
  run "$1"
  expect_equal "$output" "1: self"
  run "$prefix/bin/dtrun" -np 2 "$1"
  expect_equal "$output" "2: shm"
  expect_status 0
}

expect_c_trainer_runs() { # expect_c_trainer_runs PROGRAM
  run "$1"
  expect_equal "$output" "1 ranks agree on y = 3.00 x -2.00"
  run "$prefix/bin/dtrun" -np 2 "$1"
  expect_equal "$output" "2 ranks agree on y = 3.00 x -2.00"
  expect_status 0
}
