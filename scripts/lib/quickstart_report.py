"""Prints what a quickstart reached, from the JSON files that cnn_fmnist writes."""

import argparse
import json
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


def scaling(one, two, threads, cores):
    slow, fast = (median_speed(run) for run in (one, two))
    yield "1 rank against 2 ranks, median of three times 12 steps; every rank has the same batch and"
    yield f"the same number of threads, {threads} of this machine's {cores} cores (weak scaling)"
    yield f"  1 rank    {slow:8.0f} images/s"
    yield f"  2 ranks   {fast:8.0f} images/s"
    if cores < 2:
        yield "  the two ranks shared one core, so this says nothing about efficiency"
    else:
        yield f"  efficiency {fast / (2 * slow):6.1%}   (2 ranks / twice 1 rank)"


def main():
    parser = argparse.ArgumentParser()
    for name in ("training", "expected", "one", "two"):
        parser.add_argument("--" + name, required=True)
    for name in ("threads", "cores"):
        parser.add_argument("--" + name, required=True, type=int)
    options = parser.parse_args()
    print()
    print("\n".join(accuracy(load(options.training), options.expected)))
    print()
    print("\n".join(scaling(load(options.one), load(options.two), options.threads, options.cores)))


main()
