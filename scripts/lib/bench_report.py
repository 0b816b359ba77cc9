"""Writes the page and the plot of scripts/bench from the JSON files of the benchmarks."""

import argparse
import datetime
import glob
import itertools
import json
import math
import os
import platform
import subprocess
from xml.sax.saxutils import escape

# --- what was measured ----------------------------------------------------------------------------


def load(folder):
    """The rows of all_reduce_perf, those of one instruction set each, and what overhead_perf found (None where it did not
    run)."""
    rows, by_isa, overhead = [], [], None
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, list):
            overhead = content
        elif os.path.basename(path).startswith("isa-"):
            by_isa += content
        else:
            rows += content
    return rows, by_isa, overhead


def joined(rows):
    """Mapped and private memory side by side: {(ranks, op, dtype, bytes): {memory: row}}, in the order of a reader."""
    order = list(dict.fromkeys(row["op"] for row in sorted(rows, key=lambda row: (row["op"] != "all_reduce"))))
    lines = {}
    for row in rows:
        lines.setdefault((row["ranks"], row["op"], row["dtype"], row["bytes"]), {})[row["memory"]] = row
    types = {"f32": 0}
    return dict(
        sorted(lines.items(), key=lambda item: (item[0][0], order.index(item[0][1]), types.get(item[0][2], 1), item[0][2:]))
    )


# --- the page -------------------------------------------------------------------------------------


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def field_of(path, name, separator):
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(separator)
                if key.strip() == name:
                    return value.strip().strip('"')
    except OSError:
        pass
    return "unknown"


def machine():
    memory = field_of("/proc/meminfo", "MemTotal", ":").split()[0]
    gigabytes = f"{int(memory) / 2**20:.0f} GiB of memory" if memory.isdigit() else "memory unknown"
    cpu = field_of("/proc/cpuinfo", "model name", ":")
    return f"{os.cpu_count()} cores of {cpu}, {gigabytes}"


def versions():
    yield field_of("/etc/os-release", "PRETTY_NAME", "=")
    yield "Linux " + platform.release()
    yield "GCC " + (output_of("gcc", "-dumpfullversion") or "unknown")
    yield (output_of("mpirun", "--version").splitlines() or ["Open MPI unknown"])[0].replace("mpirun (Open MPI)", "Open MPI")
    yield "commit " + (output_of("git", "rev-parse", "--short", "HEAD") or "unknown")


def microseconds(row):
    """The time of a row as text."""
    if row is None:
        return "-"
    value = row["time_us"]
    if value < 100:
        return f"{value:.3g}"
    return f"{round(value, 0 if value < 1000 else -1 if value < 100_000 else -3):,.0f}"


def ours(row):
    """dtrun's time and, in parentheses, MPI's over it."""
    ratio = "" if row is None or row["ratio"] is None else f" ({row['ratio']:.2f})"
    return microseconds(row) + ratio


def table(rows):
    """A line for each operation, type and size, with a group of columns for each number of ranks."""
    cases = {}  # {(op, dtype): {ranks: [(bytes, {memory: row})]}}, smallest size first
    others = {row["bytes"] for row in rows if row["op"] == "all_reduce" and row["dtype"] != "f32"}
    for (ranks, op, dtype, size), memory in joined(rows).items():
        if (op, dtype) == ("all_reduce", "f32") and others and size not in others:
            continue  # the plot shows it
        cases.setdefault((op, dtype), {}).setdefault(ranks, []).append((size, memory))
    columns = sorted({row["ranks"] for row in rows})
    heads = ["operation", "bytes", *(f"{memory}, {ranks}" for ranks in columns for memory in ("mapped", "private"))]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for (op, dtype), by_ranks in cases.items():
        name = op if dtype == "f32" else f"{op} {dtype}"
        for i in range(max(map(len, by_ranks.values()))):
            sizes, cells = [], []
            for ranks in columns:
                size, memory = by_ranks[ranks][i] if i < len(by_ranks.get(ranks, [])) else (None, {})
                sizes += [] if size is None else [f"{size:,}"]
                cells += [ours(memory.get("mapped")), ours(memory.get("private"))]
            yield "| " + " | ".join([name, ", ".join(dict.fromkeys(sizes)), *cells]) + " |"


ISAS = ("baseline", "avx2", "avx512")


def isa_table(rows):
    """Of each type and size the time with every instruction set that the CPU has."""
    isas = [isa for isa in ISAS if any(row["isa"] == isa for row in rows)]
    lines = {}
    for row in rows:
        lines.setdefault((row["dtype"], row["bytes"]), {})[row["isa"]] = row
    yield f"| type | bytes | {' | '.join(isas)} |"
    yield "|---|---" + "|---" * len(isas) + "|"
    for (dtype, size), by_isa in sorted(lines.items(), key=lambda item: (item[0][0] != "f32", item[0])):
        cells = [f"{microseconds(by_isa[isa])} ({by_isa[isa]['algbw_gbps']:.3g})" if isa in by_isa else "-" for isa in isas]
        yield f"| {dtype} | {size:,} | " + " | ".join(cells) + " |"


BY_ISA = """### By instruction set

`dtrun -np 2 --reduce-isa avx2 ./all_reduce_perf --memory mapped` measures all-reduces of mapped memory with one instruction set.
All instruction sets give the same bits. The cells are microseconds, with GB/s in parentheses."""

HOW = """# Benchmarks

Most programs time batches of dtrun and of its peer alternately in the same processes. A figure is the median over rounds of the
slowest rank's time. If other processes use more than 5 % of the CPU in three runs, the program prints `INVALID` and exits with
code 1 (not `init_perf` and `overhead_perf`). Every program has `--help` and `--json FILE`. `scripts/bench` writes the first two
sections of this page."""


TABLE = """```
dtrun -np 2 ./all_reduce_perf --op all_to_all --dtype f32 --bytes 4096,1048576 --json rows.json
```

| key of `rows.json` | meaning |
|---|---|
| `op`, `dtype`, `ranks` | the operation; reductions are sums, roots are rank 0 |
| `bytes` | the largest buffer of one rank |
| `memory` | `mapped`: from `Communicator::Allocate`; `private`: any other memory, such as MPI's buffers |
| `time_us`, `mpi_time_us`, `ratio` | medians over at least 15 rounds; `ratio` is MPI's time over dtrun's |
| `algbw_gbps`, `memcpy_gbps` | bytes over time; speed at which one core copies |
| `in_place_gbps` | speed at which all ranks together read and write when each adds two arrays into both |
| `isa`, `wrong` | instruction set of the sums; wrong elements of the result, all of which are checked |
| `cache_line_ns` | time of a cache line between the cores of ranks 0 and 1, before and after the run |

- `send_receive` sends to the next rank and receives from the previous rank.
- MPI does not add 16-bit floats: `mpi_time_us` and `ratio` are null.
- In a batch, MPI's small operations with a root overlap, because only some ranks wait in them.
- If a host has more ranks than cores, dtrun sets `mpi_yield_when_idle 1` for MPI.

The cells are microseconds of dtrun, of f32 unless a row names another type (f64 takes as long as f32). Parentheses hold
`ratio`: MPI takes so many times as long, and below 1, MPI is faster. Column heads end with the number of ranks. The plot has
more sizes of all_reduce."""


def page(rows, by_isa, overhead, command, plot):
    yield HOW
    yield ""
    yield "## Measured"
    yield ""
    if not rows:
        yield "Nothing yet: `scripts/bench` has not run on this state of the sources."
        return
    wrong = sum(row["wrong"] for row in rows)
    copies = sorted(row["memcpy_gbps"] for row in rows)
    yield f"`{command}` on {machine()};"
    yield f"{', '.join(versions())}; {datetime.date.today()}."
    together = sorted(row["in_place_gbps"] for row in rows if row["ranks"] == 2)
    yield f"One core copies {copies[0]:.1f} to {copies[-1]:.1f} GB/s. Two ranks together read and write {together[0]:.1f} to"
    yield f"{together[-1]:.1f} GB/s in place. Wrong elements: {wrong}."
    if overhead is not None:
        yield f"An all-reduce of 4 KiB of mapped memory takes {overhead['with_us']:.2f} us, {overhead['overhead_us']:.2f} us of which"
        yield "go to the flight recorder and the comparison of calls (`overhead_perf`)."
    yield ""
    yield f"![All-reduce: bytes per second over size, dtrun and MPI]({plot})"
    yield ""
    yield TABLE
    yield ""
    yield from table(rows)
    yield ""
    if by_isa:
        yield BY_ISA
        yield ""
        yield from isa_table(by_isa)
        yield ""


def hand_written(path):
    """The sections behind the table of the old page: other programs measure what they tell."""
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        old = file.read()
    measured = old.find("\n## Measured\n")
    begin = old.find("\n## ", measured + 1)
    if begin >= 0:
        yield from old[begin + 1 :].rstrip("\n").split("\n")


# --- the plot -------------------------------------------------------------------------------------

# Colours that differ for those who see fewer of them, on white and on black.
COLOURS = {"mapped": ("#0550ae", "#79b8ff"), "private": ("#1a7f37", "#56d364"), "mpi": ("#bc4c00", "#ffa657")}


def line_styles(which):
    """Written out for each line: not every viewer knows CSS variables."""
    for name, colours in COLOURS.items():
        yield f"path.{name} {{ stroke: {colours[which]} }} circle.{name}, text.{name} {{ fill: {colours[which]} }}"


STYLE = f"""
  text {{ font: 12px system-ui, sans-serif }} .title {{ font-size: 15px; font-weight: 600 }}
  path {{ fill: none; stroke-width: 2; stroke-linejoin: round }}
  .back {{ fill: #ffffff }} .text {{ fill: #24292f }} .quiet {{ fill: #59636e }}
  .grid {{ stroke: #d8dee4 }} .axis {{ stroke: #8c959f }}
  {" ".join(line_styles(0))}
  @media (prefers-color-scheme: dark) {{
    .back {{ fill: #0d1117 }} .text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }}
    .grid {{ stroke: #2b323b }} .axis {{ stroke: #6e7681 }}
    {" ".join(line_styles(1))}
  }}
"""
LINES = {"mapped": "mapped", "private": "private", "mpi": "MPI"}
PANEL, GAP, HEIGHT, LEFT, TOP = 230, 72, 270, 60, 78


def speeds(rows, ranks):
    """{line: [(bytes, GB/s)]} of the f32 all-reduces on so many ranks."""
    lines = {name: [] for name in LINES}
    for (row_ranks, op, dtype, size), memory in joined(rows).items():
        if (row_ranks, op, dtype) != (ranks, "all_reduce", "f32"):
            continue
        for name, row in memory.items():
            lines[name].append((size, row["algbw_gbps"]))
        beside = memory.get("mapped") or memory["private"]
        if beside["mpi_time_us"]:
            lines["mpi"].append((size, size / beside["mpi_time_us"] / 1e3))
    return {name: points for name, points in lines.items() if points}


def size_name(size):
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"


def spread(labels, least, bottom):
    """Moves labels [y, name] apart, top to bottom, and up again where they would leave the panel."""
    labels.sort()
    for i in range(1, len(labels)):
        labels[i][0] = max(labels[i][0], labels[i - 1][0] + least)
    if labels:
        labels[-1][0] = min(labels[-1][0], bottom)
    for i in range(len(labels) - 2, -1, -1):
        labels[i][0] = min(labels[i][0], labels[i + 1][0] - least)
    return labels


class Scale:
    """From a logarithmic axis to pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = math.log(low), math.log(max(high, low * 2)), start, end

    def __call__(self, value):
        share = (math.log(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def panel(lines, ranks, left, x_of, y_of, decades, sizes):
    bottom = TOP + HEIGHT
    yield f'<text class="text" x="{left}" y="{TOP - 12}">{ranks} ranks</text>'
    for decade in decades:
        y = y_of(decade)
        yield f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if left == LEFT:  # the panels share the axis
            yield f'<text class="quiet" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{decade:g}</text>'
    yield f'<line class="axis" x1="{left}" x2="{left + PANEL}" y1="{bottom}" y2="{bottom}"/>'
    for i, size in enumerate(sizes):
        x = left + x_of(size)
        anchor = "start" if i == 0 else "end" if i == len(sizes) - 1 else "middle"
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text class="quiet" x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">{size_name(size)}</text>'
    for name, points in lines.items():
        steps = " ".join(f"{left + x_of(size):.1f},{y_of(speed):.1f}" for size, speed in points)
        yield f'<path class="{name}" d="M{steps}"/>'
        for size, speed in points:
            tip = f"{LINES[name]}, {ranks} ranks, {size_name(size)}: {speed:.3g} GB/s"
            yield f'<circle class="{name}" cx="{left + x_of(size):.1f}" cy="{y_of(speed):.1f}" r="2.5"><title>{tip}</title></circle>'
    labels = spread([[y_of(points[-1][1]), name] for name, points in lines.items()], 15, bottom)
    for y, name in labels:
        yield f'<text class="{name}" x="{left + PANEL + 8}" y="{y + 4:.1f}">{LINES[name]}</text>'


def plot(rows):
    panels = {ranks: speeds(rows, ranks) for ranks in sorted({row["ranks"] for row in rows})}
    panels = {ranks: lines for ranks, lines in panels.items() if lines}
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    width = LEFT + len(panels) * (PANEL + GAP) + 8
    height = TOP + HEIGHT + 48
    sizes = sorted({size for size, _ in points}) or [1]
    slowest, fastest = (f((speed for _, speed in points), default=1) for f in (min, max))
    decades = [10.0**i for i in range(math.floor(math.log10(slowest)), math.ceil(math.log10(fastest)) + 1)]
    x_of = Scale(sizes[0], sizes[-1], 0, PANEL)
    y_of = Scale(decades[0], decades[-1], TOP + HEIGHT, TOP)
    ticks = sizes if len(sizes) < 4 else [sizes[0], sizes[len(sizes) // 3], sizes[2 * len(sizes) // 3], sizes[-1]]

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    yield "<title>All-reduce of f32: GB/s over size, dtrun and MPI</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="back" width="{width}" height="{height}"/>'
    yield f'<text class="text title" x="{LEFT}" y="24">{escape("All-reduce of f32: GB/s over size (higher is better)")}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="43">dtrun in mapped and in private memory, beside Open MPI; both axes logarithmic</text>'
    for i, (ranks, lines) in enumerate(panels.items()):
        yield from panel(lines, ranks, LEFT + i * (PANEL + GAP), x_of, y_of, decades, ticks)
    yield "</svg>"


# --------------------------------------------------------------------------------------------------


def write(path, lines):
    """As a whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser()
    for name in ("results", "command", "page", "plot"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    rows, by_isa, overhead = load(options.results)
    if rows:
        write(options.plot, plot(rows))
    sections = itertools.chain(
        page(rows, by_isa, overhead, options.command, os.path.basename(options.plot)), hand_written(options.page)
    )
    write(options.page, sections)


main()
