"""dtrun.torch beside torch.distributed with gloo, in the same processes and in turn: dtrun -np 2 python bench/python_perf.py

Prints medians of calls, and the ratio of gloo's time to dtrun's: of small all-reduces, and of training steps with
DistributedDataParallel. The first calls after the other library has worked find cold caches, and are also printed by themselves.
"""
import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dtrun.torch as hvd


def join_gloo():
    path = hvd.broadcast_object(os.path.join(tempfile.mkdtemp(), "store"))
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=hvd.rank(), world_size=hvd.size())


def in_turn(first, second, blocks, repeats):
    """For each: the median seconds of a call, and of the first calls of the blocks, which alternate."""
    seconds = ([], [])
    for _ in range(blocks):
        for function, times in zip((first, second), seconds):
            hvd.barrier()
            for _ in range(repeats):
                begin = time.perf_counter()
                function()
                times.append(time.perf_counter() - begin)
    return [statistics.median(times[start::step]) for times in seconds for start, step in ((0, 1), (0, repeats))]


def show(what, calls, unit, factor):
    ours, our_first, theirs, their_first = hvd.allreduce(torch.tensor(calls, dtype=torch.float64), op=hvd.Max).tolist()
    if hvd.rank() == 0:
        print(f"{what}: dtrun {ours * factor:.1f} {unit}, gloo {theirs * factor:.1f} {unit}, {theirs / ours:.2f}; after the other: "
              f"dtrun {our_first * factor:.1f} {unit}, gloo {their_first * factor:.1f} {unit}")


def small_tensors(blocks):
    x = torch.ones(1)
    show("all-reduce of 4 bytes by name", in_turn(lambda: hvd.allreduce_(x, name="x", op=hvd.Sum), lambda: dist.all_reduce(x),
                                                  blocks, 500), "us", 1e6)
    tensors = [torch.ones(256) for _ in range(1000)]

    def each():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    show("1,000 tensors of 1 KiB", in_turn(lambda: hvd.grouped_allreduce_(tensors, name="group", op=hvd.Sum), each, blocks, 10),
         "us", 1e6)


class Transformer(torch.nn.Module):
    """10 million parameters."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(2000, 384)
        layer = torch.nn.TransformerEncoderLayer(384, 6, 1152, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 6)
        self.head = torch.nn.Linear(384, 2000)

    def forward(self, words):
        return self.head(self.layers(self.embedding(words)))


def training(blocks, steps):
    def prepare(reduce):
        torch.manual_seed(1)
        model = Transformer()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        if reduce:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            model = DistributedDataParallel(model)
        words = torch.randint(0, 2000, [4, 32])

        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
            optimizer.step()

        return step

    ours, theirs = prepare(True), prepare(False)
    ours(), theirs()
    show("a training step of a transformer of 10 million parameters", in_turn(ours, theirs, blocks, steps), "ms", 1e3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="training steps of a block")
    told = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    join_gloo()
    small_tensors(told.blocks)
    training(told.blocks, told.steps)
    dist.destroy_process_group()


main()
