#!/usr/bin/env python3
"""model_perf's step in PyTorch: network C, forward, loss, backward, Adam. bf16 by autocast."""

import contextlib

import common

options = common.arguments("pytorch_perf")
try:
    import torch
except ImportError:
    common.absent("pytorch_perf", "torch")

torch.set_num_threads(options.threads)
torch.manual_seed(1)


def network_c():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Dropout(0.25),
        torch.nn.Flatten(),
        torch.nn.Linear(9216, 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(128, 10),
    )


def make_step(dtype):
    model = network_c().train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7)
    images = torch.rand(options.batch, 1, 28, 28)
    labels = torch.arange(options.batch) % 10

    def computing():
        return torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()

    def step():
        adam.zero_grad()
        with computing():
            logits = model(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        adam.step()

    return step


print(f"PyTorch {torch.__version__}")
common.measure(options, make_step)
