#!/usr/bin/env bash
# scripts/fuzz, with stand-ins for the fuzz targets. They record their calls and end as each story needs.
source tests/scripts/stories.sh

# A clone with two targets. Each target records its call. The targets listed in $PWD/broken fail.
built_clone() {
  machine && fresh_clone
  mkdir -p built/tests/fuzz tests/fuzz/corpus/frames
  printf 'TARGETS = [\n    "frames",\n    "hosts",\n]\n' >tests/fuzz/BUILD.bazel
  touch broken
  tool clang <<<'exit 0'
  tool bazel <<SH
if [[ \$1 == info ]]; then echo $PWD/built; else echo "\$*" >>$PWD/builds; fi
SH
  for target in frames hosts; do
    cat >built/tests/fuzz/$target <<'SH'
#!/bin/bash
name=$(basename "$0")
echo "$name $*" >>calls
if grep -qx "$name" broken; then echo "ERROR: it broke here" && exit 77; fi
echo "stat::number_of_executed_units: 1234"
SH
    chmod +x built/tests/fuzz/$target
  done
}

all_targets() {
  built_clone
  run scripts/fuzz
  expect_status 0
  expect_output "ok    frames: 1234 inputs in 15 s"
  expect_output "ok    hosts: 1234 inputs in 15 s"
  expect_last_line "2 passed, 0 failed, 0 skipped"
  grep -q -- '--config=fuzz //tests/fuzz:frames //tests/fuzz:hosts$' builds || unmet "both targets built"
  grep -q 'frames -max_total_time=15 .* build/fuzz/frames/corpus tests/fuzz/corpus/frames$' calls ||
    unmet "what was found and what is kept as inputs"
}
story "without arguments, each target runs for its time and starts with the kept inputs" all_targets

named() {
  built_clone
  run scripts/fuzz --seconds 3 hosts
  expect_status 0
  expect_last_line "1 passed, 0 failed, 0 skipped"
  expect_equal "$(grep -c . calls)" 1
  grep -q '^hosts -max_total_time=3 ' calls || unmet "three seconds of hosts"
}
story "a named target runs alone for the given time" named

failing() {
  built_clone
  echo frames >broken
  run scripts/fuzz
  expect_status 1
  expect_output "FAIL  frames: the last lines of build/fuzz/frames/log:"
  expect_output "    ERROR: it broke here"
  expect_output "ok    hosts"
  expect_last_line "1 passed, 1 failed, 0 skipped"
}
story "a failing target is shown and counted, and the other targets run" failing

refused() {
  built_clone
  run scripts/fuzz host
  expect_status 2
  expect_last_line "fuzz: unknown target 'host'; expected one of: frames hosts"
  for seconds in 0 x -1 1.5 ""; do
    run scripts/fuzz --seconds "$seconds"
    expect_status 2
    expect_last_line "fuzz: --seconds: found '$seconds'; expected a number from 1 to 999999"
  done
  run scripts/fuzz --seconds
  expect_last_line "fuzz: --seconds: found ''; expected a number from 1 to 999999"
  run scripts/fuzz --frobnicate
  expect_status 2
  expect_last_line "fuzz: unknown argument '--frobnicate'; expected --seconds S, --help or targets"
  rm "$machine/clang"
  run scripts/fuzz
  expect_status 69
  expect_last_line "fuzz: clang was not found; expected Debian's packages clang and libclang-rt-14-dev"
  [[ ! -e calls ]] || unmet "that nothing ran"
}
story "wrong arguments and a missing Clang are refused in one line" refused

end_of_stories
