"""What the peers of model_perf have in common: options, recipes, timing, the protocol of bench/peer.h.

A peer makes the network of models/networks/network.h that has the same name, and takes steps of it: forward, loss,
backward, optimizer, on images that lie ready in memory. Called by itself it times them. With --serve it takes one step per
request of model_perf --peer, which measures its own steps in between.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time


@dataclasses.dataclass
class Recipe:
    """How model_perf trains a network, and what on."""

    optimizer: str = "adam"  # Adam 1e-3 with an epsilon of 1e-7, or SGD 1e-2
    momentum: float = 0
    kernel_l2: float = 0  # times the sum of squares of kernels: half a weight decay
    image: int = 28
    channels: int = 1
    classes: int = 10


RECIPES = {
    "A": Recipe(),
    "B": Recipe(),
    "C": Recipe(),
    "D": Recipe("sgd"),
    "mlp": Recipe(),
    "resnet18": Recipe("sgd", 0.9, 0.5e-4, 32, 3, 10),
    "resnet50": Recipe("sgd", 0.9, 0.5e-4, 224, 3, 1000),
}
DTYPES = ("f32", "bf16")


def arguments(name, models):
    parser = argparse.ArgumentParser(prog=name, description=f"A training step of model_perf's networks in {name}.")
    parser.add_argument("--model", default="C", help=f"the network: {', '.join(models)}")
    parser.add_argument("--dtype", default="f32,bf16", help="what it computes in, comma-separated: f32, bf16")
    parser.add_argument("--batch", type=int, default=1024, help="examples of a step")
    parser.add_argument("--image", type=int, default=0, help="height and width of an image; 0: the network's own")
    parser.add_argument("--classes", type=int, default=0, help="0: the network's own")
    parser.add_argument("--threads", type=int, default=1, help="of the computation")
    parser.add_argument("--rounds", type=int, default=15, help="steps that are timed")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--serve", action="store_true", help="take one step per line of the standard input (bench/peer.h)")
    found = parser.parse_args()
    if found.model not in models:
        parser.error(f"--model: '{found.model}', expected one of {', '.join(models)}")
    found.dtypes = found.dtype.split(",")
    for dtype in found.dtypes:
        if dtype not in DTYPES:
            parser.error(f"--dtype: '{dtype}', expected f32 or bf16")
    if found.serve and len(found.dtypes) != 1:
        parser.error(f"--dtype: '{found.dtype}', expected one of f32, bf16 with --serve")
    found.recipe = RECIPES[found.model]
    found.image = found.image or found.recipe.image
    found.classes = found.classes or found.recipe.classes
    if found.serve:
        # Libraries may print: their words must not stand between the answers.
        found.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
    return found


def absent(name, package):
    print(f"{name}: the Python package {package} is not installed", file=sys.stderr)
    sys.exit(69)


def run(options, name, make_steps):
    """make_steps(dtype) gives the number of parameters and, by variant, functions that take one step and wait for it."""
    if options.serve:
        parameters, steps = make_steps(options.dtype)
        serve(options, {"name": name, "variants": list(steps), "parameters": parameters}, steps)
    else:
        print(name)
        measure(options, make_steps)


def serve(options, about, steps):
    print("ready", json.dumps(about), file=options.answers)
    for line in sys.stdin:
        words = line.split()
        if len(words) != 2 or words[0] != "step" or words[1] not in steps:
            sys.exit(f"request '{line.strip()}', expected 'step' and one of {', '.join(steps)}")
        steps[words[1]]()
        print("done", file=options.answers)


def measure(options, make_steps):
    rows = []
    for dtype in options.dtypes:
        for variant, step in make_steps(dtype)[1].items():
            for _ in range(3):
                step()
            seconds = []
            for _ in range(options.rounds):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            speed = options.batch / statistics.median(seconds)
            row = {"model": options.model, "dtype": dtype, "variant": variant, "threads": options.threads}
            rows.append({**row, "batch": options.batch, "images_per_s": speed})
            print(f"{options.model} {dtype:5} {variant:14} {options.threads} threads, batch {options.batch}: {speed:.0f} images/s")
            sys.stdout.flush()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
