# shellcheck shell=bash
# Test cases for scripts. Each `story` is a test case: it runs alone in a subshell and an empty folder, and fails at its first
# unmet expectation. `end_of_stories` prints the line that scripts/test counts.

set -euo pipefail

tree=$PWD # the runfiles: scripts/, tools/ and the other files that the test lists in `data`
stories_passed=0
stories_failed=0
stories_skipped=0

story() { # story SENTENCE FUNCTION
  local folder status=0
  folder=$(mktemp -d "$TEST_TMPDIR/story.XXXXXX")
  set +e
  (set -e && cd "$folder" && "$2") >"$folder.log" 2>&1
  status=$?
  set -e
  if ((status == 0)); then
    stories_passed=$((stories_passed + 1))
    echo "ok    $1"
  else
    stories_failed=$((stories_failed + 1))
    echo "FAIL  $1"
    sed 's/^/        /' "$folder.log"
  fi
}

# A story that cannot run on this machine.
skip_story() { # skip_story SENTENCE REASON
  stories_skipped=$((stories_skipped + 1))
  echo "      $1"
  echo "SKIPPED: $2"
}

end_of_stories() {
  echo "$stories_passed passed, $stories_failed failed, $stories_skipped skipped"
  ((stories_failed == 0))
}

# Runs a command that must end by itself, without a terminal or standard input. Sets `status` and `output`.
run() { # run COMMAND...
  set +e
  output=$(setsid timeout "${limit_s:-20}" "$@" 2>&1 </dev/null)
  status=$?
  set -e
  echo "\$ $*"
  echo "$output"
}

expect_status() { [[ $status == "$1" ]] || unmet "exit code $1, got $status"; }
expect_output() { [[ $output == *"$1"* ]] || unmet "output with '$1'"; }
expect_no_output() { [[ $output != *"$1"* ]] || unmet "no output with '$1'"; }
expect_last_line() { [[ ${output##*$'\n'} == "$1" ]] || unmet "the last line '$1', got '${output##*$'\n'}'"; }
expect_equal() { [[ $1 == "$2" ]] || unmet "'$2', got '$1'"; }

unmet() {
  echo "expected $1"
  exit 1
}

# A copy of the scripts. A story may write into the copy.
fresh_clone() {
  mkdir clone
  cp -rL "$tree/scripts" clone/
  cd clone
}

# A copy of the whole repository. The test names //:CONTRIBUTING.md in `data`.
copy_of_repository() {
  local real
  real=$(dirname "$(readlink -f "$tree/CONTRIBUTING.md")")
  mkdir copy
  tar -C "$real" --exclude=./.git --exclude=./build --exclude=./dist --exclude='./bazel-*' -cf - . | tar -C copy -xf -
  cd copy
}

# A simulated machine: a PATH with this system's tools. It lacks tools that change the system or that stories replace.
machine() { # machine: sets PATH
  mkdir machine
  machine=$PWD/machine
  ln -s /usr/bin/* "$machine" # python3 among them
  rm -f "$machine"/{apt-get,dpkg,dpkg-query,sudo,bazel,mpirun,mpicc}
  PATH=$machine
  unset CI
}

tool() { # tool NAME: a program of the machine, its text from standard input
  rm -f "$machine/$1"
  { echo '#!/bin/bash' && cat; } >"$machine/$1"
  chmod +x "$machine/$1"
}
