#!/usr/bin/env bash
# Runs the commands of docs/guides/embedding.md. A second Bazel runs those of Bazel.
source tests/scripts/stories.sh
source tests/consumers/installed.sh
source scripts/lib/readme.sh
install_and_move

page=$tree/docs/guides/embedding.md

# ~/dtrun is the installed dtrun, and this folder holds the trainers and the page's own build files.
commands_run() {
  local command number=0
  trainer_sources
  readme_blocks "$page" cmake | sed '/^\f$/,$d' >CMakeLists.txt # libtorch_test.sh uses the second one
  readme_blocks "$page" starlark | sed "s,/home/you/dtrun,$prefix," >blocks
  sed '/^\f$/,$d' blocks >WORKSPACE
  sed '1,/^\f$/d; /^\f$/d' blocks >BUILD.bazel
  export HOME=${prefix%/*}
  # shellcheck disable=SC2317 # the page calls it
  bazel() {
    own_bazel "$@"
    return "$status"
  }
  while read -r -u 3 command; do
    number=$((number + 1))
    echo "page: $command"
    case $command in
      scripts/install*) expect_equal "$command" "scripts/install ~/dtrun" ;; # done by install_and_move
      *) eval "$command" </dev/null || unmet "that '$command' works" ;;
    esac
  done 3< <(readme_commands "$page")
  own_bazel shutdown
  ((number >= 9)) || unmet "nine commands at least, got $number"
  expect_trainer_runs build/trainer
  expect_trainer_runs ./trainer
  expect_trainer_runs bazel-bin/trainer
  expect_c_trainer_runs build/trainer_c
  expect_c_trainer_runs ./trainer_c
}
story "the commands of the page run in their order" commands_run

end_of_stories
