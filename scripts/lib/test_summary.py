"""Counts test cases after `bazel test` and says which failed, why, and which were skipped.

Reads the build events that Bazel writes (--build_event_json_file): every test target of the build, how it ended and where
its logs are. What a log says about its cases is believed in this order:

  its last line "N passed, N failed, N skipped"     the project's own programs and scripts
  Catch2's closing lines, added up                  "All tests passed (9 assertions in 3 test cases)"
  neither                                           the target is one case

A case that could not run says so with a line "SKIPPED: reason". A target that did not end well counts at least one failure,
so that a crash, a time-out or a target that does not compile is never lost.
"""

import argparse
import collections
import json
import re
import sys
import urllib.parse

Cases = collections.namedtuple("Cases", "passed failed skipped")
Target = collections.namedtuple("Target", "label status cases reasons logs told")

PLAIN = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
CATCH2_PASSED = re.compile(r"^All tests passed \(\d+ assertions? in (\d+) test cases?\)$", re.M)
CATCH2_FAILED = re.compile(r"^test cases:\s+\d+ \|(.*)$", re.M)
FAILURE = re.compile(r"\bFAILED:|^FAIL\b|\bFATAL\b|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer")
RULE = re.compile(r"^\s*([-=.~])?\1*\s*$")
SKIPPED = re.compile(r"^\s*SKIPPED: (.+)$", re.M)


def count_cases(log, ended_well):
    """Cases of one log. `ended_well`: the target's own verdict."""
    skipped = len(SKIPPED.findall(log))
    plain = PLAIN.findall(log)
    passed_runs, failed_runs = CATCH2_PASSED.findall(log), CATCH2_FAILED.findall(log)
    if plain:
        passed, failed, skipped = (int(number or 0) for number in plain[-1])
    elif passed_runs or failed_runs:
        passed = sum(map(int, passed_runs)) + sum(catch2_part(run, "passed") for run in failed_runs)
        failed = sum(catch2_part(run, "failed") for run in failed_runs)
        passed -= min(skipped, passed)  # Catch2 v2 cannot skip: such a case has passed without checking anything
    else:
        passed, failed = int(ended_well and not skipped), 0
        skipped = min(skipped, 1)
    if not ended_well and failed == 0:
        failed = 1
    return Cases(passed, failed, skipped)


def catch2_part(run, word):
    part = re.search(rf"(\d+) {word}\b(?! as expected)", run)
    return int(part.group(1)) if part else 0


def what_failed(log):
    """The lines of a log that say which case failed and why: around the first failures, or else its end."""
    lines = [line[:300] for line in log.splitlines() if not RULE.match(line)]
    failures = [i for i, line in enumerate(lines) if FAILURE.search(line)][:3]
    if not failures:
        return lines[-12:]
    shown = sorted({k for i in failures for k in range(i - 3, i + 6) if 0 <= k < len(lines)})
    return [lines[k] for k in shown]


def read_events(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def read_log(uri):
    path = urllib.parse.unquote(urllib.parse.urlparse(uri).path)
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def targets_of(events):
    """Every test target that the build was asked to run, those without a result included."""
    expected, statuses, logs = set(), {}, collections.defaultdict(list)
    wanted = tag_filter(events)
    for event in events:
        kind = event["id"]
        if "targetConfigured" in kind and "testSize" in event.get("configured", {}):
            if wanted(set(event["configured"].get("tag", []))):
                expected.add(kind["targetConfigured"]["label"])
        elif "testSummary" in kind:
            statuses[kind["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "testResult" in kind:
            outputs = event["testResult"].get("testActionOutput", [])
            found = [output["uri"] for output in outputs if output["name"] == "test.log"]
            logs[kind["testResult"]["label"]] += found
    for label in sorted(expected | set(statuses)):
        yield one_target(label, statuses.get(label, "DID NOT BUILD OR RUN"), logs[label])


def tag_filter(events):
    """Which sets of tags the command line chose: --test_tag_filters=gpu,-full wants `gpu` and refuses `full`."""
    words = [word for event in events for word in event.get("optionsParsed", {}).get("explicitCmdLine", [])]
    filters = [word.split("=", 1)[1] for word in words if word.startswith("--test_tag_filters=")]
    names = [name for name in filters[-1].split(",") if name] if filters else []
    refused = {name[1:] for name in names if name.startswith("-")}
    required = {name for name in names if not name.startswith("-")}
    return lambda tags: not tags & refused and (not required or tags & required)


def one_target(label, status, uris):
    texts = [read_log(uri) for uri in uris]
    ended_well = status == "PASSED"
    counts = [count_cases(text, ended_well) for text in texts] or [count_cases("", ended_well)]
    reasons = [reason for text in texts for reason in SKIPPED.findall(text)]
    told = [] if ended_well else [line for text in texts for line in what_failed(text)]
    return Target(label, status, Cases(*map(sum, zip(*counts))), reasons, uris, told)


def step_target(label, status, path):
    """A check that ran outside Bazel, with its log: LABEL=STATUS:FILE."""
    return one_target(label, "PASSED" if status == "0" else "FAILED", ["file://" + urllib.parse.quote(path)])


def print_targets(targets):
    width = max((len(target.label) for target in targets), default=0)
    for target in targets:
        cases = f"{target.cases.passed:4d} passed"
        cases += f", {target.cases.failed} failed" if target.cases.failed else ""
        cases += f", {target.cases.skipped} skipped" if target.cases.skipped else ""
        status = "" if target.status == "PASSED" else f"   {target.status}"
        print(f"  {target.label:{width}} {cases}{status}")
        for reason in target.reasons:
            print(f"      skipped: {reason}")
        for line in target.told:
            print(f"      | {line}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", action="append", default=[], metavar="FILE")
    parser.add_argument("--step", action="append", default=[], metavar="LABEL=STATUS:FILE")
    options = parser.parse_args()
    targets = []
    for path in options.events:
        found = list(targets_of(read_events(path)))
        # A run of no tests is a defect of the run, not a success.
        targets += found or [Target(f"no test ran ({path})", "FAILED", Cases(0, 1, 0), [], [], [])]
    for step in options.step:
        label, result = step.split("=", 1)
        targets.append(step_target(label, *result.split(":", 1)))
    print_targets(targets)
    total = Cases(*map(sum, zip(*(target.cases for target in targets)))) if targets else Cases(0, 1, 0)
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    sys.exit(1 if total.failed else 0)


main()
