#include "models/layers/network_graph.h"

#include <dtrun/error.h>

#include <numeric>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

std::vector<size_t> Next(size_t count, size_t& next) {
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(), next);
  next += count;
  return indices;
}

bool TakesRelu(OperationKind kind) {
  return kind == OperationKind::kConvolution || kind == OperationKind::kDense ||
         kind == OperationKind::kBatchNorm || kind == OperationKind::kAdd;
}

}  // namespace

const char* NameOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kConvolution: return "convolution";
    case OperationKind::kDense: return "dense";
    case OperationKind::kMaxPool: return "max_pool";
    case OperationKind::kAveragePool: return "average_pool";
    case OperationKind::kGlobalAveragePool: return "global_average_pool";
    case OperationKind::kBatchNorm: return "batch_norm";
    case OperationKind::kRelu: return "relu";
    case OperationKind::kDropout: return "dropout";
    case OperationKind::kSoftmax: return "softmax";
    case OperationKind::kAdd: return "add";
    case OperationKind::kReshape: return "reshape";
  }
  return "";
}

size_t NetworkGraph::Add(Operation operation, const Shape& output) {
  operation.output = shapes_.size();
  operation.layer = layer_name;
  shapes_.push_back(output);
  operations_.push_back(std::move(operation));
  return output_ = shapes_.size() - 1;
}

size_t NetworkGraph::AddActivation(size_t input, Activation activation) {
  if (activation == Activation::kNone) return input;
  return Add({.kind = OperationKind::kRelu, .inputs = {input}}, shapes_[input]);
}

std::vector<size_t> NetworkGraph::TakeParameters(size_t count) {
  return Next(count, next_parameter_);
}
std::vector<size_t> NetworkGraph::TakeBuffers(size_t count) { return Next(count, next_buffer_); }

NetworkGraph DescribeNetwork(const NetworkToPlan& network) {
  NetworkGraph graph(network.input, network.seed);
  size_t value = 0;
  for (size_t i = 0; i < network.layers.size(); ++i) {
    const Layer& layer = *network.layers[i].layer;
    graph.layer_index = static_cast<uint32_t>(i);
    graph.layer_name = Text("layer ", i, " (", layer.description(), ")");
    value = layer.Describe(graph, value);
  }
  graph.set_output(value);
  return graph;
}

size_t Layer::Describe(NetworkGraph& graph, size_t /*input*/) const {
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          graph.layer_name,
          " is computed on the CPU only: the layer does not override Layer::Describe"));
}

NetworkGraph FuseRelus(const NetworkGraph& graph) {
  std::vector<size_t> readers(graph.shapes().size());
  for (const Operation& operation : graph.operations())
    for (const size_t input : operation.inputs) ++readers[input];
  ++readers[graph.output()];

  NetworkGraph fused(graph.shapes()[0], graph.seed());
  std::vector<size_t> now(graph.shapes().size());  // by value of `graph`
  std::vector<Operation> kept;
  std::vector<size_t> maker(graph.shapes().size(), graph.operations().size());  // in `kept`
  for (const Operation& operation : graph.operations()) {
    const size_t input = operation.inputs[0], before = maker[input];
    const bool joins = operation.kind == OperationKind::kRelu && before < kept.size() &&
                       readers[input] == 1 && TakesRelu(kept[before].kind) && !kept[before].relu;
    if (!joins) {
      maker[operation.output] = kept.size();
      kept.push_back(operation);
      continue;
    }
    kept[before].relu = true;
    kept[before].output = operation.output;
    maker[operation.output] = before;
  }
  for (Operation& operation : kept) {
    const size_t old = operation.output;
    for (size_t& input : operation.inputs) input = now[input];
    fused.layer_name = operation.layer;
    now[old] = fused.Add(operation, graph.shapes()[old]);
  }
  fused.set_output(now[graph.output()]);
  return fused;
}

}  // namespace dtrun::models
