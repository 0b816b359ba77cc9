"""What the peers of model_perf have in common: options, timing, the JSON."""

import argparse
import json
import statistics
import sys
import time


def arguments(name):
    parser = argparse.ArgumentParser(prog=name, description=f"A training step of network C in {name}.")
    parser.add_argument("--dtype", default="f32,bf16", help="what it computes in, comma-separated: f32, bf16")
    parser.add_argument("--batch", type=int, default=1024, help="examples of a step")
    parser.add_argument("--threads", type=int, default=1, help="of the computation")
    parser.add_argument("--rounds", type=int, default=15, help="steps that are timed")
    parser.add_argument("--json", help="write the rows to this file")
    found = parser.parse_args()
    for dtype in found.dtype.split(","):
        if dtype not in ("f32", "bf16"):
            parser.error(f"--dtype: '{dtype}', expected f32 or bf16")
    return found


def absent(name, package):
    print(f"{name}: the Python package {package} is not installed", file=sys.stderr)
    sys.exit(69)


def measure(options, make_step):
    """make_step(dtype) gives a function that takes one step and waits for it."""
    rows = []
    for dtype in options.dtype.split(","):
        step = make_step(dtype)
        for _ in range(3):
            step()
        seconds = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        speed = options.batch / statistics.median(seconds)
        row = {"model": "C", "dtype": dtype, "threads": options.threads, "batch": options.batch, "images_per_s": speed}
        rows.append(row)
        print(f"C {dtype:5} {options.threads} threads, batch {options.batch}: {speed:.0f} images/s", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
