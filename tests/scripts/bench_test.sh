#!/usr/bin/env bash
# The measurements of scripts/bench and the page that it writes. The benchmarks are stand-ins that only record their calls.
source tests/scripts/stories.sh

# A clone in which everything is built. `dtrun` is a stand-in: it records each call and writes the rows of a benchmark. The
# calls listed in $PWD/broken fail.
built_clone() {
  machine && fresh_clone
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  mkdir -p bazel-bin/launcher docs/reference
  touch broken
  cat >bazel-bin/launcher/dtrun <<'PY'
#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
option = lambda name, default=None: words[words.index(name) + 1] if name in words else default
ranks, isa, program, op, dtype = int(option("-np")), option("--reduce-isa"), words[4], option("--op"), option("--dtype", "f32")
with open("calls", "a") as calls:
    print(ranks, program.split("/")[-1], op, dtype, *[isa] * (isa != "auto"), file=calls)
if isa == "avx512":
    print("all_reduce_perf: reduce_isa is 'avx512', which the CPU of rank 0 lacks (found avx2, baseline); expected auto")
    sys.exit(2)
if f"{op} {ranks}" in open("broken").read():
    print("INVALID: other processes used more than 5 % of the CPU in three runs")
    sys.exit(1)
if op is None:
    result = {"with_us": 0.81, "without_us": 0.75, "overhead_us": 0.06}
else:
    half = dtype in ("f16", "bf16")
    result = [
        {"op": op, "dtype": dtype, "ranks": ranks, "bytes": int(size), "memory": memory, "isa": isa, "time_us": int(size) / 1000 + 1,
         "mpi_time_us": None if half else int(size) / 500 + 3, "ratio": None if half else 2.0, "algbw_gbps": 0.5,
         "memcpy_gbps": 20.0, "in_place_gbps": 38.0, "wrong": 0}
        for memory in ("mapped", "private") for size in option("--bytes").split(",")]
with open(option("--json"), "w") as file:
    json.dump(result, file)
PY
  chmod +x bazel-bin/launcher/dtrun
}

everything() {
  built_clone
  run scripts/bench
  expect_status 0
  for ranks in 2 4 8; do
    for op in all_reduce reduce_scatter all_gather broadcast all_to_all reduce gather scatter send_receive; do
      grep -qx "$ranks all_reduce_perf $op f32" calls || unmet "$op on $ranks ranks"
    done
    for dtype in f16 bf16; do
      grep -qx "$ranks all_reduce_perf all_reduce $dtype" calls || unmet "all_reduce of $dtype on $ranks ranks"
    done
  done
  grep -qx "2 overhead_perf None f32" calls || unmet "overhead_perf"
  for dtype in f32 f16 bf16; do
    grep -qx "2 all_reduce_perf all_reduce $dtype baseline" calls || unmet "all_reduce of $dtype with the baseline"
  done
  expect_equal "$(sort calls | uniq -d)" ""
  expect_equal "$(grep -cE '^\| [a-z_]+( f16| bf16)? \| [0-9]' docs/reference/benchmarks.md)" $((9 * 5 + 2 * 5))
  local one='5.1 (2.00) | 5.1 (2.00) |'
  grep -qxF "| all_to_all | 4,096 | $one $one $one" docs/reference/benchmarks.md || unmet "a row of all_to_all"
  one='67,110 | 67,110 |'
  grep -qxF "| all_reduce bf16 | 67,108,864 | $one $one $one" docs/reference/benchmarks.md || unmet "a row without MPI"
  grep -q "takes 0.81 us, 0.06 us of which" docs/reference/benchmarks.md || unmet "the overhead"
  # An instruction set that the CPU lacks gets no column.
  expect_output "left out: this CPU has no avx512"
  grep -qx '| type | bytes | baseline | avx2 |' docs/reference/benchmarks.md || unmet "the head by instruction set"
  grep -qx '| bf16 | 1,048,576 | 1,050 (0.5) | 1,050 (0.5) |' docs/reference/benchmarks.md || unmet "a row by instruction set"
}
story "every operation is measured once on 2, 4 and 8 ranks and listed in the table" everything

picture() {
  built_clone
  printf '# Benchmarks\n\n## Measured\nold figures\n\n## Joining a job\nby hand\n\n## Training steps\nas well\n' >docs/reference/benchmarks.md
  run scripts/bench
  expect_equal "$(tail -n 5 docs/reference/benchmarks.md)" $'## Joining a job\nby hand\n\n## Training steps\nas well'
  expect_equal "$(grep -c '^## Measured$' docs/reference/benchmarks.md)" 1
  grep -q "old figures" docs/reference/benchmarks.md && unmet "that the old page is gone"
  python3 - docs/reference/benchmarks.svg <<'PY' || unmet "a plot in which everything lies inside"
import sys
import xml.etree.ElementTree as xml

svg = xml.parse(sys.argv[1]).getroot()
name = "{http://www.w3.org/2000/svg}"
width, height = float(svg.get("width")), float(svg.get("height"))
paths = list(svg.iter(name + "path"))
assert len(paths) == 9, len(paths)  # mapped, private and MPI on 2, 4 and 8 ranks
for path in paths:
    steps = [tuple(map(float, step.split(","))) for step in path.get("d")[1:].split()]
    assert len(steps) == 13, steps
    assert all(0 <= x <= width and 0 <= y <= height for x, y in steps), steps
    assert steps == sorted(steps), steps  # larger sizes to the right
texts = list(svg.iter(name + "text"))
labels = [text for text in texts if text.text in ("mapped", "private", "MPI")]
assert len(labels) == 9, labels
for text in texts:
    assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height, text.text
places = sorted((text.get("x"), float(text.get("y"))) for text in labels)
assert all(a[0] != b[0] or b[1] - a[1] >= 14 for a, b in zip(places, places[1:])), places
PY
}
story "the plot's lines and labels lie inside the SVG and apart, and hand-written sections of the page are kept" picture

failing() {
  built_clone
  echo "gather 4" >broken
  echo "the old page" >docs/reference/benchmarks.md
  run scripts/bench
  expect_status 1
  expect_output "1 measurements failed; nothing was written"
  expect_output "gather-f32-4: INVALID: other processes used more than 5 % of the CPU in three runs"
  expect_equal "$(cat docs/reference/benchmarks.md)" "the old page"
  grep -qx "8 all_reduce_perf send_receive f32" calls || unmet "that the others were measured"

  # The next call measures only the missing row.
  rm calls
  echo >broken
  run scripts/bench
  expect_status 0
  expect_equal "$(cat calls)" "4 all_reduce_perf gather f32"
  grep -q '^| gather | ' docs/reference/benchmarks.md || unmet "the page"
}
story "an invalid measurement is reported and repeated by the next call" failing

quick() {
  built_clone
  run scripts/bench --quick
  expect_status 2
  expect_output "expected --output FOLDER"
  run scripts/bench --quick --output out
  expect_status 0
  expect_equal "$(wc -l <calls)" 43
  grep -q "^.scripts/bench --quick. on " out/benchmarks.md || unmet "that the page says how it was made"
  [[ -e out/benchmarks.svg && ! -e docs/reference/benchmarks.md ]] || unmet "the files in the folder given"
}
story "--quick also measures every operation and never writes into docs/" quick

end_of_stories
