"""Validates a timeline strictly by the rules of the trace event format. The file is JSON in valid UTF-8, without duplicate
keys or NaN. Times never go back within a row. Slices of a row are nested or disjoint. B and E events come in pairs. Each
arrow (s, t and f events of one id) begins once, ends once, goes forward in time and lies in slices of several processes.
An error in an event has the event's number. Prints one line `PID PHASE NAME COUNT` for each kind of event, the number of
arrows and otherData."""
import collections
import json
import math
import sys


class Broken(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Broken(what)


def once(pairs):
    keys = [key for key, _ in pairs]
    expect(len(keys) == len(set(keys)), f"a key stands twice among {keys}")
    return dict(pairs)


def no_constant(name):
    raise Broken(f"{name} is no JSON")


def check_text(value, where):
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Broken(f"{where}: half a character in {value!a}") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key, where)
            check_text(item, where)
    elif isinstance(value, list):
        for item in value:
            check_text(item, where)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def nanoseconds(microseconds):
    return round(microseconds * 1000)


class Row:
    """One thread of one process: its open events and all its slices."""

    def __init__(self):
        self.last = -math.inf
        self.open = []  # (end or None, name) from the outside in
        self.slices = []  # (begin, end)

    def advance(self, ts):
        expect(ts >= self.last, f"the time goes back from {self.last} to {ts}")
        self.last = ts
        while self.open and self.open[-1][0] is not None and self.open[-1][0] <= ts:
            self.open.pop()

    def begin(self, ts, name):
        self.advance(ts)
        self.open.append((None, name, ts))

    def end(self, ts, name):
        self.advance(ts)
        expect(self.open and self.open[-1][0] is None, "an E without a B")
        _, begun, begin = self.open.pop()
        expect(name is None or name == begun, f"the E of {name!r} ends {begun!r}")
        self.slices.append((begin, ts))

    def complete(self, ts, duration, name):
        self.advance(ts)
        end = ts + duration
        if self.open and self.open[-1][0] is not None:
            expect(end <= self.open[-1][0], f"{name!r} ends after {self.open[-1][1]!r}, in which it begins")
        self.open.append((end, name, ts))
        self.slices.append((ts, end))

    def encloses(self, ts):
        return any(begin <= ts <= end for begin, end in self.slices)


def check_flows(flows, rows):
    for identity, points in flows.items():
        where = f"arrow {identity}"
        phases = [phase for phase, *_ in points]
        expect(phases.count("s") == 1, f"{where} begins {phases.count('s')} times")
        expect(phases.count("f") == 1, f"{where} ends {phases.count('f')} times")
        expect(phases[0] == "s" and phases[-1] == "f", f"{where} has its parts in the order {phases}")
        expect(len({name for _, name, *_ in points}) == 1, f"{where} changes its name")
        times = [ts for *_, ts in points]
        expect(times == sorted(times), f"{where} goes back in time")
        expect(len({row[0] for _, _, row, _ in points}) > 1, f"{where} stays in one process")
        for _, _, row, ts in points:
            expect(row in rows and rows[row].encloses(ts), f"{where} touches no slice of {row} at {ts}")


def check(document):
    expect(isinstance(document, dict) and isinstance(document.get("traceEvents"), list), "there is no list traceEvents")
    rows, flows = collections.defaultdict(Row), collections.OrderedDict()
    counts, arrows = collections.Counter(), 0
    for number, event in enumerate(document["traceEvents"]):
        try:
            expect(isinstance(event, dict), "it is no object")
            phase, name = event.get("ph"), event.get("name")
            expect(phase in {"B", "E", "X", "i", "M", "s", "t", "f"}, f"its phase is {phase!r}")
            expect(phase == "E" or (isinstance(name, str) and name), "it has no name")
            for key in ("pid", "tid"):
                expect(isinstance(event.get(key), int), f"{key} is no number")
            expect(isinstance(event.get("args", {}), dict), "args is no object")
            row = (event["pid"], event["tid"])
            if phase == "M":
                expect(name in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}, f"{name}?")
                expect(("name" if name.endswith("_name") else "sort_index") in event["args"], "it says nothing")
                continue
            expect(is_number(event.get("ts")), "ts is no number")
            ts = nanoseconds(event["ts"])
            if phase in "stf":
                expect(isinstance(event.get("id"), (int, str)), "an arrow without an id")
                flows.setdefault((event.get("cat"), event["id"]), []).append((phase, name, row, ts))
                continue
            if phase == "B":
                rows[row].begin(ts, name)
            elif phase == "E":
                rows[row].end(ts, name)
            elif phase == "X":
                expect(is_number(event.get("dur")) and event["dur"] >= 0, "dur is no duration")
                rows[row].complete(ts, nanoseconds(event["dur"]), name)
            else:
                rows[row].advance(ts)
                expect(event.get("s", "t") in {"g", "p", "t"}, "the scope of an instant is g, p or t")
            counts[(event["pid"], phase, name)] += 1
        except Broken as broken:
            raise Broken(f"event {number}: {broken}: {json.dumps(event)[:200]}") from None
    for row, state in rows.items():
        for end, name, _ in state.open:
            expect(end is not None, f"the B of {name!r} in {row} has no E")
    check_flows(flows, rows)
    check_text(document, "a string")
    return counts, len(flows)


def main(path):
    try:
        with open(path, "rb") as stream:
            text = stream.read().decode("utf-8")
        document = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
        counts, arrows = check(document)
    except (Broken, ValueError) as error:
        sys.exit(f"{path}: {error}")
    for (pid, phase, name), count in sorted(counts.items()):
        print(pid, phase, json.dumps(name), count)
    print("arrows", arrows)
    print("otherData", json.dumps(document.get("otherData")))


main(sys.argv[1])
