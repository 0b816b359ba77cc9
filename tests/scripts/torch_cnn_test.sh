#!/usr/bin/env bash
# bench/peers/torch_cnn.py on the CPU, if python3 in PATH has PyTorch.
source tests/scripts/stories.sh

peer=$tree/bench/peers/torch_cnn.py
limit_s=240
export PYTHONDONTWRITEBYTECODE=1

is_python() { python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$peer"; }
story "torch_cnn.py is valid Python" is_python

no_torch() {
  echo 'raise ImportError("none here")' >torch.py
  run env PYTHONPATH="$PWD" python3 "$peer"
  expect_status 69
  expect_equal "$output" "torch_cnn: the Python package torch is not installed"
}
story "torch_cnn reports a missing PyTorch" no_torch

# Writes 130 images in IDX files, of two classes that are easy to distinguish.
data() {
  python3 - <<'PY'
import gzip
n = (130).to_bytes(4, "big")
side = (28).to_bytes(4, "big")
with gzip.open("train-images-idx3-ubyte.gz", "wb") as file:
    file.write(b"\0\0\x08\x03" + n + side + side + b"".join(bytes([255 * (i % 2)]) * 392 + bytes([30]) * 392 for i in range(130)))
with gzip.open("train-labels-idx1-ubyte.gz", "wb") as file:
    file.write(b"\0\0\x08\x01" + n + bytes(i % 2 for i in range(130)))
PY
}

learns() { # learns DTYPE
  data
  run python3 "$peer" --data-dir . --device cpu --dtype "$1" --variants eager --batch-size 32,64,1000 --epochs 3 --json rows.json
  expect_status 0
  python3 - <<'PY'
import json
found = json.load(open("rows.json"))
assert [row["batch"] for row in found["rows"]] == [32, 64], found
for row in found["rows"]:
    assert len(row["epoch_s"]) == 3 and row["steps"] == 130 // row["batch"], row
    assert row["loss"] < row["first_loss"], row
assert found["best"]["images_per_s"] == max(row["images_per_s"] for row in found["rows"]), found
PY
}
in_f32() { learns f32; }
in_bf16() { learns bf16; }

time_is_up() {
  data
  run python3 "$peer" --data-dir . --device cpu --variants eager,compile --batch-size 32 --epochs 3 --time-limit 0.001 --json rows.json
  expect_status 1
  expect_output "torch_cnn: the rest was not measured within 0.001 s"
  expect_output "torch_cnn: nothing ran"
}

refused() {
  data
  run python3 "$peer" --device cpu --dtype f64
  expect_status 2
  expect_output "--dtype: 'f64', expected one of bf16, f16, tf32, f32"
  run python3 "$peer" --device cpu --variants graph
  expect_status 2
  expect_output "--variants: 'graph', expected some of eager, compile"
  run python3 "$peer" --device cpu --data-dir nowhere
  expect_status 66
  expect_output "torch_cnn: nowhere/train-images-idx3-ubyte.gz: No such file or directory"
}

if reason=$(python3 -c 'import torch' 2>&1); then with_torch=story; else with_torch=skip_without_torch; fi
skip_without_torch() { skip_story "$1" "$(tail -n 1 <<<"$reason")"; }
$with_torch "network C learns in f32 with every batch size that fits the data set" in_f32
$with_torch "network C learns in bf16" in_bf16
$with_torch "a measurement that takes longer than the time limit is left out" time_is_up
$with_torch "wrong options and missing data are refused by name" refused
end_of_stories
