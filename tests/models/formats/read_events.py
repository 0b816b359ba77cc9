"""Prints as JSON what TensorBoard's own readers make of a folder of event files: the runs below it, and of each run
scalars, histograms, texts, images and the graph."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator, plugin_event_multiplexer
from tensorboard.plugins.graph import metadata as graphs
from tensorboard.util import tensor_util

EVERYTHING = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}


def run_of(folder):
    """Of one run, by the accumulator that scripts use. It reads what was asked for and drops nothing."""
    events = event_accumulator.EventAccumulator(folder, EVERYTHING).Reload()
    tags = events.Tags()
    run = {"version": events.file_version}
    run["scalars"] = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]}
    run["histograms"] = {
        tag: [
            {
                "step": e.step,
                "min": e.histogram_value.min,
                "max": e.histogram_value.max,
                "num": e.histogram_value.num,
                "sum": e.histogram_value.sum,
                "sum_squares": e.histogram_value.sum_squares,
                "limits": list(e.histogram_value.bucket_limit),
                "counts": list(e.histogram_value.bucket),
            }
            for e in events.Histograms(tag)
        ]
        for tag in tags["histograms"]
    }
    run["images"] = {tag: [[e.step, e.width, e.height] for e in events.Images(tag)] for tag in tags["images"]}
    run["texts"] = {
        tag: [[e.step, tensor_util.make_ndarray(e.tensor_proto).ravel()[0].decode()] for e in events.Tensors(tag)]
        for tag in tags["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    }
    nodes = events.Graph().node if tags["graph"] else []
    run["graph"] = [
        {"name": node.name, "op": node.op, "input": list(node.input), "attributes": sorted(node.attr)} for node in nodes
    ]
    return run


def shown(folder):
    """Runs, and what TensorBoard's plugins find in them once it has brought all events to the newest form."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder).Reload()
    plugins = ["scalars", "histograms", "text", "images", graphs.PLUGIN_NAME]
    found = {run: {} for run in multiplexer.Runs()}
    for plugin in plugins:
        try:
            content = multiplexer.PluginRunToTagToContent(plugin)
        except KeyError:
            continue
        for run, tags in content.items():
            found[run][plugin] = sorted(tags)
    return found


folder = sys.argv[1]
runs = shown(folder)
print(json.dumps({run: {"shown": runs[run], **run_of(folder if run == "." else f"{folder}/{run}")} for run in runs}))
