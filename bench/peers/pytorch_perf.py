#!/usr/bin/env python3
"""model_perf's step in PyTorch, in eager mode and in both formats of its tensors. bf16 by autocast."""

import contextlib

import common

options = common.arguments("pytorch_perf", list(common.RECIPES))
try:
    import torch
except ImportError as error:
    if getattr(error, "name", None) == "torch":
        common.absent("pytorch_perf", "torch")
    raise SystemExit(f"pytorch_perf: {error}")
from torch import nn

torch.set_num_threads(options.threads)
torch.set_num_interop_threads(1)
torch.manual_seed(1)

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def conv_relu(filters):
    return [nn.LazyConv2d(filters, 3), nn.ReLU(inplace=True)]


def dense_relu(units):
    return [nn.LazyLinear(units), nn.ReLU(inplace=True)]


def conv(filters, size, stride):
    return nn.LazyConv2d(filters, size, stride, padding=size // 2, bias=False)


def norm(filters, gamma=1.0):
    made = nn.BatchNorm2d(filters, eps=1e-5, momentum=0.1)
    nn.init.constant_(made.weight, gamma)
    return made


class Block(nn.Module):
    """A residual block of 1 x 1, 3 x 3 and 1 x 1, or of 3 x 3 and 3 x 3: models/networks/network.h."""

    def __init__(self, bottleneck, width, stride, projects):
        super().__init__()
        filters = 4 * width if bottleneck else width
        first, last = ((1, 1), (1, 1)) if bottleneck else ((3, stride), (3, 1))
        layers = [conv(width, *first), norm(width), nn.ReLU(inplace=True)]
        if bottleneck:
            layers += [conv(width, 3, stride), norm(width), nn.ReLU(inplace=True)]
        self.main = nn.Sequential(*layers, conv(filters, *last), norm(filters, 0.0))
        self.shortcut = nn.Sequential(conv(filters, 1, stride), norm(filters)) if projects else nn.Identity()

    def forward(self, x):
        return nn.functional.relu(self.main(x) + self.shortcut(x), inplace=True)


def resnet(classes, blocks, bottleneck, small_images):
    layers = [conv(64, 3, 1) if small_images else conv(64, 7, 2), norm(64), nn.ReLU(inplace=True)]
    if not small_images:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(bottleneck, 64 << stage, stride, block == 0 and (stage > 0 or bottleneck)))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(classes))


def network(name, classes):
    if name == "resnet18":
        return resnet(classes, (2, 2, 2, 2), bottleneck=False, small_images=True)
    if name == "resnet50":
        return resnet(classes, (3, 4, 6, 3), bottleneck=True, small_images=False)
    layers = {
        "A": [*conv_relu(32), nn.MaxPool2d(2), *conv_relu(64), nn.MaxPool2d(2), nn.Flatten(), *dense_relu(64)],
        "B": [*conv_relu(32), nn.MaxPool2d(2), nn.Flatten(), *dense_relu(64)],
        "C": [*conv_relu(32), *conv_relu(64), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), *dense_relu(128), nn.Dropout(0.5)],
        "D": [*conv_relu(32), nn.Flatten(), *dense_relu(128)],
        "mlp": [nn.Flatten(), *dense_relu(128), nn.Dropout(0.2)],
    }[name]
    return nn.Sequential(*layers, nn.LazyLinear(classes))


def optimizer_of(model, recipe):
    if recipe.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7, fused=True)
    kernels = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": kernels, "weight_decay": 2 * recipe.kernel_l2}, {"params": others}]
    return torch.optim.SGD(groups, lr=1e-2, momentum=recipe.momentum, fused=True)


def make_step(dtype, memory_format):
    model = network(options.model, options.classes)
    images = torch.rand(options.batch, options.recipe.channels, options.image, options.image)
    with torch.no_grad():
        model.eval()(images[:1])  # lazy layers take their sizes from it
    model = model.to(memory_format=memory_format).train()
    images = images.contiguous(memory_format=memory_format)
    labels = torch.arange(options.batch) % options.classes
    optimizer = optimizer_of(model, options.recipe)

    def computing():
        return torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with computing():
            logits = model(images)
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return sum(p.numel() for p in model.parameters()), step


def make_steps(dtype):
    made = {name: make_step(dtype, memory_format) for name, memory_format in FORMATS.items()}
    parameters = {count for count, _ in made.values()}
    return parameters.pop(), {name: step for name, (_, step) in made.items()}


common.run(options, f"PyTorch {torch.__version__}", make_steps)
