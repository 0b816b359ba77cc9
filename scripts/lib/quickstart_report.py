"""Prints what a quickstart reached, from the JSON files that cnn_fmnist writes."""

import argparse
import json
import re
import statistics


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def accuracy(training, expected):
    loss = ", ".join(f"{epoch['loss']:.3f}" for epoch in training["epochs"])
    yield f"Trained on {training['ranks']} ranks; loss by epoch {loss}"
    yield f"  test accuracy    {training['test_accuracy']:.4f}   (expected after 2 epochs: {expected})"
    yield f"  all {training['ranks']} ranks ended with the same weights, compared by digest: {training['parameter_digest']}"


def median_speed(run):
    """Of the epochs after the first, which generates kernels."""
    return statistics.median(epoch["images_per_s"] for epoch in run["epochs"][1:])


def compute_line(log):
    """What the ranks computed on: "CPU, oneDNN 2.6.3, threads per rank: 1"; of the last run in the log."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = re.findall(r"\bCompute +(.*)", file.read())
    return lines[-1] if lines else ""


def scaling(one, two, options):
    slow, fast = (median_speed(run) for run in (one, two))
    compute = compute_line(options.log)
    steps = f"{options.steps} step{'s' * (options.steps != 1)} of {options.batch} images"
    yield f"1 rank against 2 ranks, median of three times {steps}; every rank has the same batch and"
    yield f"the same number of threads, {options.threads} of this machine's {options.cores} cores (weak scaling)"
    if compute:
        yield f"  computed on {compute}"
    yield f"  1 rank    {slow:8.0f} images/s"
    yield f"  2 ranks   {fast:8.0f} images/s"
    if "shared:" in compute:
        yield "  the two ranks shared one GPU, so this says nothing about efficiency"
    elif options.cores < 2:
        yield "  the two ranks shared one core, so this says nothing about efficiency"
    else:
        yield f"  efficiency {fast / (2 * slow):6.1%}   (2 ranks / twice 1 rank)"


def main():
    parser = argparse.ArgumentParser()
    for name in ("training", "expected", "one", "two", "log"):
        parser.add_argument("--" + name, required=True)
    for name in ("threads", "cores", "steps", "batch"):
        parser.add_argument("--" + name, required=True, type=int)
    options = parser.parse_args()
    print()
    print("\n".join(accuracy(load(options.training), options.expected)))
    print()
    print("\n".join(scaling(load(options.one), load(options.two), options)))


main()
