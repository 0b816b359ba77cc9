#!/usr/bin/env python3
"""Training of network C on Fashion-MNIST in PyTorch, as fast as PyTorch can: the peer of cnn_fmnist on a GPU.

The data set lies on the device as bytes. An epoch is a new random order; a step gathers its batch, normalises it, and takes
forward, loss, backward and a fused Adam. Each way to run such steps (`--variants`) is measured with each batch size, and the
fastest is the figure that counts:

  eager               as PyTorch runs it
  eager_nchw          the same without channels-last
  graph_nchw          that, in such a graph as is next
  graph               steps captured in a CUDA graph by hand, --graph-steps of them
  compile             torch.compile
  compile_graph       what torch.compile makes, in such a graph
  reduce_overhead     torch.compile with its own CUDA graphs; Adam outside of them
  max_autotune        the same, with kernels tuned
  max_autotune_graph  tuned kernels, in a graph by hand

Every way is tried with the batch size that the first one is fastest with, then the others with the rest, as far as the time goes:
--time-limit also ends a way that is being made.

Images/s are those of the median epoch, on the host's clock from before the first step to after the last one has ended. Compiling,
tuning, capturing, a first epoch, and making an epoch's order are not counted.
"""

import argparse
import contextlib
import gc
import gzip
import json
import os
import statistics
import sys
import threading
import time

import common

try:
    import torch
    from torch.nn import functional
except ImportError:
    common.absent("torch_cnn", "torch")

CPU_VARIANTS = ["eager", "compile"]
# The likely best first, for those who have little time.
VARIANTS = ["graph", "compile_graph", "max_autotune_graph", "graph_nchw", "reduce_overhead", "max_autotune", "eager", "eager_nchw"]
COMPILE_MODES = {
    "compile": "default",
    "compile_graph": "default",
    "reduce_overhead": "reduce-overhead",
    "max_autotune": "max-autotune",
    "max_autotune_graph": "max-autotune-no-cudagraphs",
}
# These take so long to make that they are tried with one batch size alone.
SLOW_TO_MAKE = ("max_autotune", "max_autotune_graph")
DTYPES = ("bf16", "f16", "tf32", "f32")


def arguments():
    parser = argparse.ArgumentParser(prog="torch_cnn", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", default="/usr/share/datasets/fashion-mnist", help="the four .gz files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:1, cpu")
    parser.add_argument("--dtype", default="bf16", help="bf16 or f16 (autocast; f16 scales its loss), tf32, f32")
    parser.add_argument("--batch-size", default="1024,2048,4096,8192,16384,32768", help="examples of a step, comma-separated")
    parser.add_argument("--variants", help="comma-separated; without it, all that the device can")
    parser.add_argument("--epochs", type=int, default=5, help="that are timed")
    parser.add_argument("--graph-steps", type=int, default=8, help="steps that a graph made by hand holds, at most")
    parser.add_argument("--images", type=int, help="train on the first of them alone")
    parser.add_argument("--threads", type=int, help="of the computation on a CPU")
    parser.add_argument("--time-limit", type=float, default=0, help="end after this many seconds, with what was measured until then; 0: no limit")
    parser.add_argument("--json", help="write the rows to this file")
    found = parser.parse_args()
    if found.dtype not in DTYPES:
        parser.error(f"--dtype: '{found.dtype}', expected one of {', '.join(DTYPES)}")
    on_gpu = found.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        print(f"torch_cnn: --device {found.device}: PyTorch finds no GPU", file=sys.stderr)
        sys.exit(69)
    known = VARIANTS + ["compile"] if on_gpu else CPU_VARIANTS
    found.variants = found.variants.split(",") if found.variants else (VARIANTS if on_gpu else CPU_VARIANTS)
    for variant in found.variants:
        if variant not in known:
            parser.error(f"--variants: '{variant}', expected some of {', '.join(known)}")
    try:
        found.batches = [int(word) for word in found.batch_size.split(",")]
    except ValueError:
        parser.error(f"--batch-size: '{found.batch_size}', expected numbers")
    if min(found.batches + [found.epochs, found.graph_steps]) < 1:
        parser.error("--batch-size, --epochs and --graph-steps are 1 or more")
    return found


def read_idx(folder, name):
    """Bytes of a gzipped IDX file and the sizes in its head."""
    path = os.path.join(folder, name)
    try:
        with gzip.open(path) as file:
            content = file.read()
    except OSError as error:
        print(f"torch_cnn: {path}: {error.strerror or error}", file=sys.stderr)
        sys.exit(66)
    dimensions = content[3]
    sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).view(sizes)


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


class Training:
    """One variant with one batch size: a fresh network, and steps over indices of a data set.

    images: (N, 1, 28, 28) bytes, labels: (N) integers, both on the device.
    """

    def __init__(self, options, variant, batch, images, labels):
        self.options, self.batch, self.images, self.labels = options, batch, images, labels
        self.on_gpu = images.is_cuda
        self.half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(options.dtype)
        torch.manual_seed(1)
        self.layout = torch.contiguous_format if variant.endswith("nchw") else torch.channels_last
        self.model = network_c().to(images.device, memory_format=self.layout).train()
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=1e-7, fused=True, capturable=self.on_gpu)
        self.scaler = torch.amp.GradScaler(images.device.type, enabled=options.dtype == "f16")
        self.loss_of = self.forward
        if variant in COMPILE_MODES:
            self.loss_of = torch.compile(self.forward, mode=COMPILE_MODES[variant], dynamic=False)
        self.losses = torch.zeros((), device=images.device)
        steps = len(images) // batch
        self.graph_steps = 1
        self.graph = None
        if variant.endswith("graph") or variant == "graph_nchw":
            self.graph_steps = max(n for n in range(1, options.graph_steps + 1) if n <= steps)
            self.capture()
        # Graphs of PyTorch's own reuse their memory from step to step.
        self.own_graphs = variant in ("reduce_overhead", "max_autotune")

    def autocast(self):
        if self.half is None:
            return contextlib.nullcontext()
        # Casts that are kept across steps would be missing from a graph.
        return torch.autocast(self.images.device.type, self.half, cache_enabled=False)

    def forward(self, indices):
        batch = self.images[indices].to(self.half or torch.float32, memory_format=self.layout) / 255
        with self.autocast():
            logits = self.model(batch)
        return functional.cross_entropy(logits.float(), self.labels[indices])

    def step(self, indices):
        self.adam.zero_grad(set_to_none=True)
        loss = self.loss_of(indices)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.adam)
        self.scaler.update()
        self.losses += loss.detach()

    def capture(self):
        """Captures graph_steps steps over the indices in `window`."""
        self.window = torch.arange(self.graph_steps * self.batch, device=self.images.device) % len(self.images)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(self.window[: self.batch])
        torch.cuda.current_stream().wait_stream(stream)
        self.adam.zero_grad(set_to_none=True)  # gradients of the graph are made in its own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for indices in self.window.split(self.batch):
                self.step(indices)
        self.graph = graph

    def new_order(self):
        """An epoch's examples in the parts that are run at once: each once but for a rest smaller than a step or a graph."""
        order = torch.randperm(len(self.images), device=self.images.device)
        windows = order.split(self.batch * self.graph_steps)
        return [window for window in windows if len(window) == self.batch * self.graph_steps]

    def epoch(self, windows):
        for window in windows:
            if self.graph is not None:
                self.window.copy_(window)
                self.graph.replay()
            else:
                if self.own_graphs:
                    torch.compiler.cudagraph_mark_step_begin()
                self.step(window)

    def timed_epoch(self):
        """(seconds, steps, mean loss)."""
        windows = self.new_order()
        steps = len(windows) * self.graph_steps
        self.losses.zero_()
        self.wait()
        start = time.perf_counter()
        self.epoch(windows)
        self.wait()
        return time.perf_counter() - start, steps, self.losses.item() / steps

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()


def measure(options, variant, batch, images, labels):
    start = time.perf_counter()
    row = {"variant": variant, "dtype": options.dtype, "batch": batch}
    try:
        training = Training(options, variant, batch, images, labels)
        _, _, first_loss = training.timed_epoch()
        setup_s = time.perf_counter() - start
        epochs = [training.timed_epoch() for _ in range(options.epochs)]
    except Exception as error:  # torch has no class for all that a compiler or a capture throws
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"{variant:19} batch {batch:6}: does not run: {text}", flush=True)
        return dict(row, error=text)
    steps = epochs[0][1]
    speed = batch * steps / statistics.median(seconds for seconds, _, _ in epochs)
    row.update(
        images_per_s=round(speed, 1),
        epoch_s=[round(seconds, 6) for seconds, _, _ in epochs],
        steps=steps,
        setup_s=round(setup_s, 2),
        first_loss=first_loss,
        loss=epochs[-1][2],
    )
    print(
        f"{variant:19} batch {batch:6}: {speed:12,.0f} images/s, median of {len(epochs)} epochs; "
        f"loss {first_loss:.3f} -> {row['loss']:.3f}; {setup_s:.0f} s to make",
        flush=True,
    )
    return row


def best_of(rows):
    ran = [row for row in rows if "images_per_s" in row and row["loss"] == row["loss"]]
    return max(ran, key=lambda row: row["images_per_s"], default=None)


def pairs(variants, batches, best_batch):
    """(variant, batch) in the order in which they are tried, for who has little time; `best_batch` is asked when the first is done."""
    yield from ((variants[0], batch) for batch in batches)
    best = best_batch()
    yield from ((variant, best) for variant in variants[1:])
    quick = [variant for variant in variants[1:] if variant not in SLOW_TO_MAKE]
    yield from ((variant, batch) for variant in quick for batch in reversed(batches) if batch != best)


def measure_all(options, images, labels, rows):
    """Appends a row to `rows` as soon as it is measured."""
    batches = [batch for batch in options.batches if batch <= len(images)]

    def best_batch():
        best = best_of(rows)
        return best["batch"] if best else batches[0]

    for variant, batch in pairs(options.variants, batches, best_batch) if batches else ():
        if hasattr(torch, "_dynamo"):
            torch._dynamo.reset()
        rows.append(measure(options, variant, batch, images, labels))
        gc.collect()  # graphs keep their memory until then
        if images.is_cuda:
            torch.cuda.empty_cache()


def report(options, device, rows):
    """Returns the exit code."""
    best = best_of(rows)
    if best:
        print(f"best: {best['variant']}, batch {best['batch']}: {best['images_per_s']:,.0f} images/s", flush=True)
    else:
        print("torch_cnn: nothing ran", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "device": device, "dtype": options.dtype, "best": best, "rows": rows}, file, indent=1)
            file.write("\n")
    return 0 if best else 1


def end_after(seconds, ended, report_rows):
    """A compiler that tunes kernels runs for minutes, and goes on after a signal: so a thread ends the process."""

    def end():
        with ended:
            print(f"torch_cnn: the rest was not measured within {seconds:g} s", flush=True)
            os._exit(report_rows())

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def main():
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("highest" if options.dtype == "f32" else "high")
    torch.backends.cudnn.allow_tf32 = options.dtype != "f32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0  # of all its algorithms
    device = torch.device("cuda:0" if options.device == "cuda" else options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    images = read_idx(options.data_dir, "train-images-idx3-ubyte.gz")[: options.images].unsqueeze(1)
    labels = read_idx(options.data_dir, "train-labels-idx1-ubyte.gz")[: options.images].long()
    images, labels = images.to(device), labels.to(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"PyTorch {torch.__version__} on {name}, {options.dtype}, {len(images)} images", flush=True)
    rows = []
    ended = threading.Lock()
    if options.time_limit:
        end_after(options.time_limit, ended, lambda: report(options, name, list(rows)))
    measure_all(options, images, labels, rows)
    with ended:
        return report(options, name, rows)


if __name__ == "__main__":
    sys.exit(main())
