#!/usr/bin/env bash
# Every shell script passes shellcheck. Files that are only sourced are checked as part of the scripts that source them.
source tests/scripts/stories.sh

scripts_are_clean() {
  cd "$tree"
  mapfile -t programs < <(grep -lE '^#!.*(bash|/sh)$' scripts/* scripts/*/* debian/tests/* tests/abi/*.sh tests/consumers/*.sh tests/scripts/{run_stories,shellcheck_test}.sh 2>/dev/null)
  ((${#programs[@]} >= 5)) || unmet "five scripts at least, got ${programs[*]}"
  shellcheck -x "${programs[@]}"
}
story "shellcheck reports no problem" scripts_are_clean

end_of_stories
