#!/usr/bin/env bash
# Trainers in their own Bazel workspace, with an installed dtrun as a repository.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
install_and_move

local_repository() {
  trainer_sources
  cp -L "$tree/tests/consumers/models.cc" network.cc
  cp -L "$tree/tests/consumers/bazel/BUILD.in" BUILD.bazel
  sed "s,/home/you/dtrun,$prefix," "$tree/tests/consumers/bazel/WORKSPACE.in" >WORKSPACE
  own_bazel build --cxxopt=-std=c++17 --conlyopt=-std=c99 --conlyopt=-pedantic \
    --copt=-Wall --copt=-Wextra --copt=-Werror --cxxopt=-Wconversion //:trainer //:trainer_c
  expect_status 0
  expect_trainer_runs bazel-bin/trainer
  expect_c_trainer_runs bazel-bin/trainer_c
  own_bazel build --cxxopt=-std=c++20 --copt=-Wall --copt=-Wextra --copt=-Werror //:network
  expect_status 0
  expect_network_learns bazel-bin/network
  own_bazel shutdown
}
story "a local_repository at the installed tree builds trainers in C++17 and C99 and with the training library" local_repository

end_of_stories
