#!/usr/bin/env python3
"""torch_perf's ResNet-18 and transformer under PyTorch's DistributedDataParallel with gloo, for `torch_perf --peer`.

It runs once per rank: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which. Each request is one training step: `ddp` with all
ranks, or `alone`, which reduces nothing. By itself, RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 and --steps 5 time
some steps of each.
"""

import argparse
import json
import math
import os
import sys
import time

import common

parser = argparse.ArgumentParser(prog="torch_ddp")
parser.add_argument("--network", choices=("resnet18", "transformer"), required=True)
parser.add_argument("--batch", type=int, required=True, help="examples of this rank in a step")
parser.add_argument("--steps", type=int, default=5, help="steps to time, without --serve")
parser.add_argument("--serve", action="store_true", help="take one step per line of the standard input (bench/peer.h)")
options = parser.parse_args()
if options.serve:
    # Libraries may print: their words must not stand between the answers.
    options.answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
try:
    import torch
except ImportError as error:
    if getattr(error, "name", None) == "torch":
        common.absent("torch_ddp", "torch")
    raise SystemExit(f"torch_ddp: {error}")
import torch.distributed
from torch import nn

torch.set_num_threads(1)
torch.set_num_interop_threads(1)

WORDS = 1024


def conv(before, after, size, stride):
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.main = nn.Sequential(
            conv(before, after, 3, stride), nn.BatchNorm2d(after), nn.ReLU(), conv(after, after, 3, 1), nn.BatchNorm2d(after)
        )
        self.shortcut = None
        if before != after or stride != 1:
            self.shortcut = nn.Sequential(conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.main(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet18():
    layers, before = [conv(3, 64, 3, 1), nn.BatchNorm2d(64), nn.ReLU()], 64
    for width in (64, 128, 256, 512):
        layers += [Block(before, width, 1 if width == 64 else 2), Block(width, width, 1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads, each = 4, width // 4
        parts = self.queries(self.before(x)).view(batch, length, 3, heads, each).permute(2, 0, 3, 1, 4).unbind()
        scores = parts[0] @ parts[1].transpose(2, 3) / math.sqrt(each)
        found = torch.softmax(scores, 3) @ parts[2]
        x = x + self.attended(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


def transformer():
    layers = [Layer(256) for _ in range(12)]
    return nn.Sequential(nn.Embedding(WORDS, 256), *layers, nn.LayerNorm(256), nn.Linear(256, WORDS), nn.Flatten(0, 1))


torch.distributed.init_process_group("gloo")
if options.network == "resnet18":
    network, images = resnet18(), torch.rand(options.batch, 3, 32, 32)
else:
    network, images = transformer(), torch.randint(WORDS, (options.batch, 64))
with torch.no_grad():
    outputs = network(images)
labels = torch.randint(outputs.shape[1], (outputs.shape[0],))
# The buffers of batch normalization stay apart, as under torch_perf.
model = nn.parallel.DistributedDataParallel(network, broadcast_buffers=False, gradient_as_bucket_view=True)
sgd = torch.optim.SGD(model.parameters(), lr=0.001)


def take_step(computing):
    sgd.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(computing(images), labels).backward()
    sgd.step()


def alone():
    with model.no_sync():
        take_step(model)


steps = {"ddp": lambda: take_step(model), "alone": alone}
about = {
    "name": f"PyTorch {torch.__version__}",
    "variants": list(steps),
    "parameters": sum(parameter.numel() for parameter in network.parameters()),
}
if options.serve:
    common.serve(options, about, steps)
else:
    print(json.dumps(about))
    for name, step in steps.items():
        step()
        start = time.perf_counter()
        for _ in range(options.steps):
            step()
        print(f"{name}: {options.steps * options.batch / (time.perf_counter() - start):.1f} examples/s on this rank")
        sys.stdout.flush()
torch.distributed.destroy_process_group()
