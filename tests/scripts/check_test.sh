#!/usr/bin/env bash
# scripts/check and scripts/lib/compile_commands.py, with stand-ins for Bazel, clang-format and clang-tidy.
source tests/scripts/stories.sh

# A repository with one commit. The files in $PWD/answers hold the output of the stand-ins.
repository() {
  machine && fresh_clone
  mkdir base ops answers
  echo 'int a;' >base/a.cc
  echo 'int b;' >ops/b.cc
  touch base/BUILD.bazel
  printf '%s\n' '#!/bin/bash' 'echo "2 passed, 0 failed, 0 skipped"' >scripts/check_layers
  printf '%s\n' /answers/ /build/ /calls compile_commands.json >.gitignore
  git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm "first"
  printf '%s\n' //tests/a:a_test //tests/b:b_test //tests/c:c_test >answers/all_tests
  echo //tests/a:a_test >answers/affected
  echo //base:a.cc >answers/targets
  tool clang-format <<'SH'
echo "clang-format $*" >>calls
if grep -q "badly  formatted" "${@: -1}"; then echo "a.cc:1:4: not so" && exit 1; fi
SH
  tool clang-tidy <<'SH'
echo "clang-tidy $*" >>calls
if grep -q "moved twice" "${@: -1}"; then echo "a.cc:1:4: used after it was moved" && exit 1; fi
SH
  tool bazel <<'SH'
echo "bazel $*" >>calls
case "$*" in
  query*--keep_going*) cat answers/targets; exit 3 ;;
  query*rdeps*) cat answers/affected ;;
  query*) cat answers/all_tests ;;
  test*)
    [[ "$*" =~ --build_event_json_file=([^ ]+) ]]
    echo 'All tests passed (9 assertions in 4 test cases)' >answers/log
    {
      echo '{"id":{"targetConfigured":{"label":"//tests/a:a_test"}},"configured":{"testSize":"SMALL","tag":[]}}'
      echo "{\"id\":{\"testResult\":{\"label\":\"//tests/a:a_test\"}},\"testResult\":{\"testActionOutput\":[{\"name\":\"test.log\",\"uri\":\"file://$PWD/answers/log\"}]}}"
      echo '{"id":{"testSummary":{"label":"//tests/a:a_test"}},"testSummary":{"overallStatus":"PASSED"}}'
    } >"${BASH_REMATCH[1]}"
    ;;
  aquery*) cat answers/actions ;;
  info*) echo /cache/execroot/dtrun ;;
esac
SH
}

expect_call() { grep -qxF -- "$1" calls || unmet "the call '$1' among: $(cat calls)"; }
expect_no_call() { ! grep -q -- "$1" calls || unmet "no call with '$1'"; }

changed_file() {
  repository
  echo 'int changed;' >base/a.cc
  run scripts/check
  expect_status 0
  expect_output "1 changed files, compared with HEAD"
  expect_output "ok    base/a.cc"
  expect_output "SKIPPED: compile_commands.json was not found; scripts/lib/compile_commands.py writes it"
  expect_last_line "7 passed, 0 failed, 1 skipped"
  expect_call "clang-format --dry-run -Werror base/a.cc"
  expect_no_call "clang-format.*ops/b.cc"
  expect_no_call clang-tidy
}
story "only changed files are checked" changed_file

dependent_tests() {
  repository
  echo 'int changed;' >base/a.cc
  run scripts/check
  expect_output "1 test programs"
  grep -q 'rdeps(//tests/..., set(//base:a.cc))' calls || unmet "the tests of what was changed"
  grep -q 'bazel test .* --test_tag_filters=-full .* -- //tests/... -//tests/b:b_test -//tests/c:c_test$' calls || unmet "all others subtracted"
}
story "only tests that depend on a changed file run" dependent_tests

unformatted() {
  repository
  echo 'int  badly  formatted;' >base/a.cc
  run scripts/check
  expect_status 1
  expect_output "FAIL  base/a.cc"
  expect_output "a.cc:1:4: not so"
  expect_last_line "6 passed, 1 failed, 1 skipped"
}
story "a file that clang-format would change fails" unformatted

tidied() {
  repository
  touch compile_commands.json
  echo 'int moved twice;' >base/a.cc
  echo 'int header;' >base/a.h
  run scripts/check
  expect_status 1
  expect_output "a.cc:1:4: used after it was moved"
  expect_call "clang-tidy --quiet -p . base/a.cc"
  expect_no_call "clang-tidy.*a.h"
  expect_call "clang-format --dry-run -Werror base/a.h"
  expect_last_line "8 passed, 1 failed, 0 skipped"
}
story "with compile_commands.json, clang-tidy reads changed and new sources" tidied

changed_build_file() {
  repository
  echo '# changed' >base/BUILD.bazel
  run scripts/check
  expect_status 0
  grep -q 'query .*--keep_going set(//base:all)' calls || unmet "all targets of the package"
}
story "a changed BUILD file counts as a change of all targets of its package" changed_build_file

against_a_base() {
  repository
  git checkout -q -b work
  echo 'int changed;' >ops/b.cc
  git -c user.name=a -c user.email=a@b commit -qam "second"
  run scripts/check --base HEAD~1
  expect_output "1 changed files, compared with HEAD~1"
  expect_output "ok    ops/b.cc"
}
story "--base compares with another revision" against_a_base

nothing_changed() {
  repository
  run scripts/check
  expect_status 0
  expect_output "no target of Bazel's was changed"
  expect_no_call "bazel test"
  expect_last_line "2 passed, 0 failed, 1 skipped"
}
story "without a change, only the layers are checked" nothing_changed

without_tools() {
  repository
  rm "$machine"/clang-format "$machine"/clang-tidy
  echo 'int changed;' >base/a.cc
  run scripts/check
  expect_status 0
  expect_output "SKIPPED: clang-format was not found; install Debian's package clang-format"
  expect_output "SKIPPED: clang-tidy was not found; install Debian's package clang-tidy"
}
story "a missing tool is reported and its checks are skipped" without_tools

usage() {
  repository
  run scripts/check --bases main
  expect_status 2
  expect_equal "$output" "check: unknown argument '--bases'; expected --base REVISION or --help"
  run scripts/check --base nowhere
  expect_status 2
  expect_equal "$output" "check: --base: found 'nowhere'; expected a revision of this repository"
  run scripts/check --help
  expect_status 0
  expect_output "Usage: scripts/check [--base REVISION]"
}
story "wrong arguments are refused in one line" usage

compile_commands() {
  repository
  cat >answers/actions <<'JSON'
{"actions": [
 {"mnemonic": "CppCompile", "arguments": ["/usr/bin/gcc", "-Wall", "-std=c++0x", "-MD", "-MF", "x.d", "-frandom-seed=x.o", "-std=c++20", "-iquote", ".",
  "-Ibazel-out/k8-opt/bin/include/dtrun/_virtual_includes/types", "-isystem", "external/cli11/include", "-c", "base/a.cc", "-o", "x.o"]},
 {"mnemonic": "CppCompile", "arguments": ["/usr/bin/gcc", "-c", "base/a.cc", "-DSECOND"]},
 {"mnemonic": "CppCompile", "arguments": ["/usr/bin/gcc", "-c", "external/other/b.cc"]}]}
JSON
  run scripts/lib/compile_commands.py
  expect_status 0
  expect_last_line "compile_commands.json: 1 files"
  expect_equal "$(python3 -c 'import json; print(*json.load(open("compile_commands.json"))[0]["arguments"])')" \
    "/usr/bin/gcc -Wall -std=c++20 -iquote . -Iinclude -isystem /cache/external/cli11/include -c base/a.cc"
  grep -q 'bazel aquery .*mnemonic("CppCompile", //...)' calls || unmet "all targets"
}
story "compile_commands.json lists each source once with arguments that Clang accepts" compile_commands

end_of_stories
