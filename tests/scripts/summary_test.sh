#!/usr/bin/env bash
# Counting test cases from Bazel's build events and the tests' logs.
source tests/scripts/stories.sh

# Events in the format of `bazel test`, one JSON object per line.
configured() { # configured LABEL [TAG]
  echo "{\"id\":{\"targetConfigured\":{\"label\":\"$1\"}},\"configured\":{\"testSize\":\"MEDIUM\",\"tag\":[\"${2:-}\"]}}"
}
finished() { echo "{\"id\":{\"buildFinished\":{}},\"finished\":{\"exitCode\":{\"name\":\"$1\"}}}"; }

target() { # target LABEL STATUS: a test that ran; its log comes from standard input
  local log=$PWD/logs$1.log
  mkdir -p "$(dirname "$log")"
  cat >"$log"
  configured "$1"
  echo "{\"id\":{\"testResult\":{\"label\":\"$1\"}},\"testResult\":{\"testActionOutput\":[{\"name\":\"test.log\",\"uri\":\"file://$log\"}]}}"
  echo "{\"id\":{\"testSummary\":{\"label\":\"$1\"}},\"testSummary\":{\"overallStatus\":\"$2\"}}"
}

summary() { run python3 "$tree/scripts/lib/test_summary.py" "$@"; }

catch2_counts() {
  {
    target //a:a PASSED <<<'All tests passed (12 assertions in 3 test cases)'
    target //b:b FAILED <<<$'===\ntest cases:  5 |  3 passed | 2 failed\nassertions: 20 | 18 passed | 2 failed'
    finished TESTS_FAILED
  } >events
  summary --events events
  expect_status 1
  expect_last_line "6 passed, 2 failed, 0 skipped"
}
story "test cases of Catch2 are added up over all targets" catch2_counts

failing_case() {
  {
    target //a:a FAILED <<<$'-----\na good day\n  with rain\n-----\na_test.cc:7\n.....\n\na_test.cc:9: FAILED:\n  CHECK( 1 == 2 )\n\n====\ntest cases: 1 | 1 failed'
    target //b:b FAILED <<<$'starting\nSegmentation fault'
    target //c:c PASSED <<<$'a log\nAll tests passed (1 assertion in 1 test case)'
    finished TESTS_FAILED
  } >events
  summary --events events
  expect_output "a good day"
  expect_output "a_test.cc:9: FAILED:"
  expect_output "CHECK( 1 == 2 )"
  expect_output "| Segmentation fault"
  expect_no_output "a log"
}
story "the summary shows the failed test case and the reason" failing_case

all_passed() {
  { target //a:a PASSED <<<'All tests passed (1 assertion in 1 test case)' && finished SUCCESS; } >events
  summary --events events
  expect_status 0
  expect_last_line "1 passed, 0 failed, 0 skipped"
}
story "the exit code is 0 only if no test failed" all_passed

crash() {
  {
    target //a:a FAILED <<<$'starting\nSegmentation fault'
    target //b:b TIMEOUT <<<'All tests passed (1 assertion in 1 test case)'
    finished TESTS_FAILED
  } >events
  summary --events events
  expect_last_line "1 passed, 2 failed, 0 skipped"
  expect_output TIMEOUT
}
story "a crash and a time-out are failures even if the log reports success" crash

no_build() {
  {
    target //a:a PASSED <<<'done'
    configured //b:b
    finished BUILD_FAILURE
  } >events
  summary --events events
  expect_status 1
  expect_output "DID NOT BUILD"
  expect_last_line "1 passed, 1 failed, 0 skipped"
}
story "a test that does not compile counts as a failure" no_build

filtered() {
  {
    echo '{"id":{"optionsParsed":{}},"optionsParsed":{"explicitCmdLine":["--keep_going","--test_tag_filters=-full"]}}'
    target //a:a PASSED <<<'done'
    configured //b:long full
    configured //c:c threads
    finished BUILD_FAILURE
  } >events
  summary --events events
  expect_last_line "1 passed, 1 failed, 0 skipped"
  expect_no_output //b:long
  sed -i 's/=-full/=threads/; /a:a/d' events
  summary --events events
  expect_last_line "0 passed, 1 failed, 0 skipped"
  expect_output //c:c
}
story "a test excluded by its tags is not counted" filtered

skips() {
  {
    target //a:gpu PASSED <<<$'warning:\n  SKIPPED: no GPU\n\nAll tests passed (4 assertions in 3 test cases)'
    target //b:b PASSED <<<'SKIPPED: ip netns needs root'
    finished SUCCESS
  } >events
  summary --events events
  expect_status 0
  expect_output "skipped: no GPU"
  expect_output "skipped: ip netns needs root"
  expect_last_line "2 passed, 0 failed, 2 skipped"
}
story "a skipped test case counts as skipped and shows the reason" skips

own_line() {
  { target //a:a PASSED <<<$'1 passed, 0 failed, 0 skipped\n7 passed, 0 failed, 1 skipped' && finished SUCCESS; } >events
  echo $'FAIL  ops reaches runtime\n4 passed, 1 failed, 0 skipped' >layers.log
  summary --events events --step "scripts/check_layers=1:$PWD/layers.log"
  expect_status 1
  expect_last_line "11 passed, 1 failed, 1 skipped"
}
story "the project's own summary line counts in Bazel tests and in other checks" own_line

no_tests() {
  finished NO_TESTS_FOUND >events
  summary --events events
  expect_status 1
  expect_last_line "0 passed, 1 failed, 0 skipped"
  : >events
  summary --events events
  expect_last_line "0 passed, 1 failed, 0 skipped"
}
story "a run without any test counts as a failure" no_tests

end_of_stories
