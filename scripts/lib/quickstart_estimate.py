"""How long the parts of the quickstart take, computed from two short measurements. See --help of each command.

The arithmetic is in the functions at the top: numbers in, numbers out. Each command prints its numbers on one line for the
shell and a sentence for the reader on the next.
"""

import argparse
import json
import statistics

# --- the build ------------------------------------------------------------------------------------
# All in units of MEASURED_FILE of quickstart_measure.sh (runtime/reducer/bucketed_reducer.cc), compiled on all cores at once. Found
# on 2 cores of an Intel Xeon (Sapphire Rapids), GCC 12: what the quickstart runs took 146 s from nothing, without CUDA, where the
# unit takes 1.75 s.

UNITS_PER_SOURCE_FILE = 0.61  # in groups, with the linking; a part of the files is not compiled
UNITS_OF_START = 4  # Bazel's start and analysis: one core, however many there are
UNITS_OF_LONGEST = 11  # the last file to wait for, and the linking after it
UNITS_OF_CUDA = 55  # nvcc, all kernels
UNITS_OF_LONGEST_CUDA = 31  # nvcc, ops/cuda/collectives.cu


def build_seconds(unit_s, cores, source_files, cuda=False):
    """Work divided by cores, but never shorter than the longest single action."""
    work = source_files * UNITS_PER_SOURCE_FILE + (UNITS_OF_CUDA if cuda else 0)
    longest = UNITS_OF_LONGEST_CUDA if cuda else UNITS_OF_LONGEST
    return unit_s * (UNITS_OF_START + max(work / cores, longest))


# --- training -------------------------------------------------------------------------------------

EPOCHS = 2
# Of a training image's time: 0.40 was measured with AVX-512, 0.55 with SSE4.1.
TEST_IMAGE_COST = 0.5

# All that follows the build, measuring included, shall end within this time where the machine can train the two epochs
# in that time.
AFTER_BUILD_S = 150
RESERVE_S = 8  # what the estimate may be wrong by
COMPARED_EPOCHS = 4  # one that warms up and three of which the median counts
EPOCH_S = (0.7, 3)  # how long an epoch of the comparison lasts: at least, at most
BATCH, SMALL_BATCH = 1024, 256


def training_seconds(images_per_s, start_s, train_images, test_images):
    """`images_per_s` is that of both ranks together; `start_s` passes before the first step."""
    return start_s + EPOCHS * (train_images + TEST_IMAGE_COST * test_images) / images_per_s


def plan_comparison(images_per_s, start_s, train_images, spent_s):
    """Batch and steps of each epoch, and the seconds that 1 rank and then 2 ranks take. `spent_s`: measuring and training."""
    left = AFTER_BUILD_S - RESERVE_S - spent_s - 2 * start_s
    epoch_s = min(max(left / (2 * COMPARED_EPOCHS), EPOCH_S[0]), EPOCH_S[1])
    per_rank = images_per_s / 2
    images = epoch_s * per_rank
    batch = BATCH if images >= 2 * BATCH else SMALL_BATCH
    most = max(1, train_images // (2 * batch))  # an epoch of 2 ranks uses no image twice
    steps = min(max(1, int(images / batch)), most)
    return batch, steps, 2 * start_s + 2 * COMPARED_EPOCHS * steps * batch / per_rank


def probed_speed(probe, probe_s):
    """Images per second, and the seconds that are no training; the first epoch generates kernels."""
    epochs = probe["epochs"]
    return (
        statistics.median(epoch["images_per_s"] for epoch in epochs[1:]),
        max(0.0, probe_s - sum(epoch["seconds"] for epoch in epochs)),
    )


# --- what a reader sees ---------------------------------------------------------------------------


def rounded(seconds):
    """As exactly as an estimate is worth saying."""
    step = 5 if seconds < 60 else 10 if seconds < 180 else 30
    return max(step, round(seconds / step) * step)


def duration(seconds):
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"


def cores_text(cores):
    return "this one core" if cores == 1 else f"these {cores} cores"


def build(options):
    seconds = rounded(build_seconds(options.unit_s, options.cores, options.source_files, options.cuda))
    print(seconds)
    limit = "at most about" if options.partly else "about"
    aside = " (a part of it is built already)" if options.partly else ""
    print(
        f"building takes {limit} {duration(seconds)} on {cores_text(options.cores)}{aside}, measured: "
        f"one file in {options.unit_s:.1f} s"
    )


def training(options):
    with open(options.probe, encoding="utf-8") as file:
        speed, start_s = probed_speed(json.load(file), options.probe_s)
    train_s = training_seconds(speed, start_s, options.train_images, options.test_images)
    batch, steps, compare_s = plan_comparison(speed, start_s, options.train_images, options.probe_s + train_s)
    seconds = rounded(train_s + compare_s)
    print(seconds, batch, steps)
    print(f"training and comparing take about {duration(seconds)}, measured: {speed:,.0f} images/s on 2 ranks")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("build", help="prints SECONDS and a sentence")
    command.add_argument("--unit-s", type=float, required=True, help="seconds for the unit on each core, all at once")
    command.add_argument("--cores", type=int, required=True)
    command.add_argument("--source-files", type=int, required=True)
    command.add_argument("--cuda", action="store_true")
    command.add_argument("--partly", action="store_true", help="something is built already")
    command.set_defaults(run=build)

    command = commands.add_parser("training", help="prints SECONDS, BATCH and STEPS of the comparison, and a sentence")
    command.add_argument("--probe", required=True, help="what cnn_fmnist wrote about a few steps on 2 ranks")
    command.add_argument("--probe-s", type=float, required=True, help="how long that took, start and end included")
    command.add_argument("--train-images", type=int, required=True)
    command.add_argument("--test-images", type=int, required=True)
    command.set_defaults(run=training)

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
