"""Prints the contents of a folder of event files as JSON, as TensorBoard's own readers read them: the scalars,
histograms, texts, images, graph and HParams session of each run below the folder."""
import json
import sys

from google.protobuf import json_format
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.graph import metadata as graphs
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.util import tensor_util

EVERYTHING = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}


def run_of(folder):
    """One run, as the accumulator that scripts use reads it. EVERYTHING keeps it from dropping events."""
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


def sessions(multiplexer):
    """The sessions by run, as the HParams plugin lists them: hyper-parameters, metrics by tag, and status."""
    provider = data_provider.MultiplexerDataProvider(multiplexer, "")
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=100, allowed_statuses=[status for _, status in api_pb2.Status.items()]
    )
    answer = list_session_groups.Handler(context.RequestContext(), backend, "", request).run()
    found = {}
    for group in answer.session_groups:
        for session in group.sessions:
            found[session.name] = {
                "hparams": {name: json_format.MessageToDict(value) for name, value in group.hparams.items()},
                "metrics": {metric.name.tag: metric.value for metric in session.metric_values},
                "status": api_pb2.Status.Name(session.status),
                "seconds": session.end_time_secs - session.start_time_secs,
            }
    return found


def shown(multiplexer):
    """The tags of each run by TensorBoard plugin. TensorBoard first converts all events to the newest form."""
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
events_of_runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder).Reload()
runs, session_of = shown(events_of_runs), sessions(events_of_runs)
print(
    json.dumps(
        {
            run: {
                "shown": runs[run],
                "session": session_of.get(run),
                **run_of(folder if run == "." else f"{folder}/{run}"),
            }
            for run in runs
        }
    )
)
