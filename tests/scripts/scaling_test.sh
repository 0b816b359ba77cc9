#!/usr/bin/env bash
# scripts/scaling with a stand-in for the trainer and the real program that makes the table.
source tests/scripts/stories.sh

# A clone in which everything is built. `dtrun` is a stand-in: it records each call and writes a trainer's result. After the
# first epoch, each rank has 1,000 images/s, less 100 for each further rank.
built_clone() {
  machine && fresh_clone
  tool dpkg-query <<<"printf 'install ok installed'"
  tool apt-get <<<'exit 1'
  tool bazel <<<'exit 0'
  tool nproc <<<'echo 4'
  mkdir -p bazel-bin/launcher bazel-bin/models/report
  ln -s "$tree/models/report/scaling_report" bazel-bin/models/report/
  cat >bazel-bin/launcher/dtrun <<'PY'
#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
ranks = int(words[1])
with open("calls", "a") as calls:
    print(*words[:-2], file=calls)
if os.path.exists(f"broken-{ranks}"):
    print("cnn_fmnist: there is no data")
    sys.exit(66)
speed = ranks * (1000 - 100 * (ranks - 1))
epochs = [{"images_per_s": 1, "seconds": 1}] + [{"images_per_s": speed, "seconds": 3}] * 3
with open(words[-1], "w") as file:
    json.dump({"ranks": ranks, "epochs": epochs}, file)
PY
  chmod +x bazel-bin/launcher/dtrun
}

table() {
  built_clone
  run scripts/scaling
  expect_status 0
  expect_equal "$(cut -d' ' -f1,2 calls | tr '\n' ' ')" "-np 1 -np 2 -np 4 "
  expect_equal "$(cut -d' ' -f3- calls | sort -u)" \
    "bazel-bin/models/cnn_fmnist --epochs 4 --steps-per-epoch 12 --verbose 0 --threads 1"
  expect_output "  ranks    images/s   speed-up   efficiency"
  expect_output "      1       1,000       1.00      100.0 %   ##########|"
  expect_output "      2       1,800       1.80       90.0 %   ################## "
  expect_output "      4       2,800       2.80       70.0 %   ############################  "
}
story "the number of ranks doubles up to the number of CPUs, and a table shows the speed-up" table

files() {
  built_clone
  mkdir out
  run scripts/scaling -np 3 --json out/scaling.json --html out/scaling.html
  expect_status 0
  expect_equal "$(cut -d' ' -f2 calls | xargs)" "1 2 3"
  python3 - <<'PY' || unmet "the table as JSON"
import json

result = json.load(open("out/scaling.json"))
assert [row["ranks"] for row in result["scaling"]] == [1, 2, 3], result
assert abs(result["scaling"][2]["efficiency"] - 0.8) < 1e-9, result
assert result["program"].startswith("cnn_fmnist --epochs 4"), result
PY
  grep -q '<td class="number">2,400</td>' out/scaling.html || unmet "the page"
}
story "-np need not be a power of two, and the table can be written to files" files

own_program() {
  built_clone
  printf '#!/bin/sh\n' >../trainer
  chmod +x ../trainer
  run scripts/scaling -np 2 --program ../trainer -- --batch 3 "two words"
  expect_status 0
  expect_equal "$(sort -u calls | tail -n 1)" "-np 2 $PWD/../trainer --batch 3 two words"
  expect_output "trainer --batch 3 two words"
}
story "--program runs another trainer with its own arguments" own_program

failing() {
  built_clone
  touch broken-2
  run scripts/scaling
  expect_status 66
  expect_output "cnn_fmnist: there is no data"
  expect_no_output "efficiency"
}
story "a failing training ends the run with its exit code" failing

short_run() {
  built_clone
  sed -i 's/\* 3$/* 0/' bazel-bin/launcher/dtrun
  run scripts/scaling -np 1
  expect_status 66
  expect_output "scaling_report: 1 rank: 1 epoch; expected at least 2, since the first one warms up and does not count"
}
story "a run of one epoch gives no result" short_run

wrong_calls() {
  built_clone
  run scripts/scaling -np 0
  expect_status 2
  expect_last_line "scaling: -np: '0', expected a number of ranks from 1 to 99999"
  run scripts/scaling --json
  expect_status 2
  expect_last_line "scaling: --json: the value is missing; see scripts/scaling --help"
  run scripts/scaling --program missing
  expect_status 2
  expect_last_line "scaling: --program: $PWD/missing is not a program"
  run scripts/scaling --fast
  expect_status 2
  [[ ! -e calls ]] || unmet "that nothing ran"
}
story "wrong arguments are refused before any training runs" wrong_calls

end_of_stories
