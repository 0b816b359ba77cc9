#!/usr/bin/env bash
# Runs the given scripts, each in its own bash and its own empty TEST_TMPDIR, and adds up the counts in their last lines. A
# script that fails without a failed story counts as one failed story.
set -euo pipefail

passed=0
failed=0
skipped=0
scripts=0
folder=$TEST_TMPDIR

for script in "$@"; do
  scripts=$((scripts + 1))
  echo "== $script"
  export TEST_TMPDIR=$folder/$scripts # short: Open MPI puts sockets there
  mkdir "$TEST_TMPDIR"
  status=0
  bash "$script" 2>&1 | tee "$TEST_TMPDIR.log" || status=$?
  if [[ $(tail -n 1 "$TEST_TMPDIR.log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
    if ((status == 0 || BASH_REMATCH[2] > 0)); then continue; fi
  fi
  failed=$((failed + 1))
  echo "FAIL  $script: exit code $status; expected stories, and the number of them in the last line"
done

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && scripts > 0))
