#!/usr/bin/env bash
# Trainers in a Bazel workspace of their own, which has an installed dtrun as a repository.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
install_and_move

# A Bazel of this test's own: the one that runs it is busy. In place of what it would download come the stand-ins that
# the build of dtrun itself uses, and no rc file of this machine's users is read.
own_bazel() { # own_bazel ARGUMENT...: prints as Bazel does
  local real stand_ins=()
  real=$(dirname "$(dirname "$(readlink -f "$tree/scripts/install")")")
  for library in rules_cc rules_java remote_coverage_tools; do
    stand_ins+=("--override_repository=$library=$real/scripts/bazel/$library")
  done
  limit_s=120 run env -u TEST_TMPDIR bazel --nohome_rc --output_user_root="$TEST_TMPDIR/bazel" --max_idle_secs=15 \
    "$1" "${stand_ins[@]}" "${@:2}"
}

local_repository() {
  trainer_sources
  cp -L "$tree/tests/consumers/bazel/BUILD.in" BUILD.bazel
  sed "s,/home/you/dtrun,$prefix," "$tree/tests/consumers/bazel/WORKSPACE.in" >WORKSPACE
  own_bazel build --cxxopt=-std=c++17 --conlyopt=-std=c99 --conlyopt=-pedantic \
    --copt=-Wall --copt=-Wextra --copt=-Werror --cxxopt=-Wconversion //:trainer //:trainer_c
  expect_status 0
  expect_trainer_runs bazel-bin/trainer
  expect_c_trainer_runs bazel-bin/trainer_c
  own_bazel shutdown
}
story "a local_repository at the installed tree builds trainers in C++17 and in C99" local_repository

end_of_stories
