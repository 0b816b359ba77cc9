#include "models/layers/network_graph.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/layers/residual.h"
#include "models/layers/sequential.h"

namespace dtrun::testing {
namespace {

using namespace models;

NetworkGraph Described(const models::Shape& input, const LayerList& layers) {
  NetworkToPlan network;
  network.input = input;
  for (const std::unique_ptr<Layer>& layer : layers) network.layers.push_back({layer.get()});
  return DescribeNetwork(network);
}

// "convolution(0)->1 relu(1)->2"; a fused ReLU as "convolution+relu".
std::string TextOf(const NetworkGraph& graph) {
  std::string text;
  for (const Operation& operation : graph.operations()) {
    text += text.empty() ? "" : " ";
    text += NameOf(operation.kind) + std::string(operation.relu ? "+relu" : "") + "(";
    for (size_t i = 0; i < operation.inputs.size(); ++i)
      text += (i == 0 ? "" : ",") + std::to_string(operation.inputs[i]);
    text += ")->" + std::to_string(operation.output);
  }
  return text;
}

constexpr Activation kRelu = Activation::kRelu;

TEST_CASE("layers describe themselves as basic operations") {
  const NetworkGraph graph = Described(
      {8, 8, 1}, Layers(Conv2D(4, 3, kRelu), MaxPool2D(), Dropout(0.5), Flatten(), Dense(10)));
  CHECK(
      TextOf(graph) ==
      "convolution(0)->1 relu(1)->2 max_pool(2)->3 dropout(3)->4 reshape(4)->5 dense(5)->6");
  CHECK(graph.output() == 6);
  CHECK(graph.shapes()[3] == models::Shape{3, 3, 4});
  CHECK(graph.operations()[5].parameters == std::vector<size_t>{2, 3});
  CHECK(graph.operations()[0].layer == "layer 0 (conv2d 4 3x3 relu)");
}

TEST_CASE("the paths of a residual block take parameters in the order of its specs") {
  const NetworkGraph graph = Described(
      {8, 8, 2},
      Layers(Residual(
          Layers(Conv2D(4, 3, {.padding = Padding::Same(), .use_bias = false}), BatchNorm()),
          Layers(Conv2D(4, 1)))));
  CHECK(
      TextOf(graph) ==
      "convolution(0)->1 batch_norm(1)->2 convolution(0)->3 add(2,3)->4 relu(4)->5");
  CHECK(graph.operations()[0].parameters == std::vector<size_t>{0});
  CHECK(graph.operations()[1].parameters == std::vector<size_t>{1, 2});
  CHECK(graph.operations()[2].parameters == std::vector<size_t>{3, 4});
  CHECK(
      graph.operations()[1].layer ==
      "layer 0 (" + std::string("residual [conv2d 4 3x3 same without bias, batch_norm] + [conv2d 4 "
                                "1x1] relu), main 1 "
                                "(batch_norm)"));
}

TEST_CASE("a ReLU joins the operation whose output it alone reads") {
  const NetworkGraph graph = Described(
      {8, 8, 2},
      Layers(
          Conv2D(2, 3, {.padding = Padding::Same(), .activation = kRelu}), MaxPool2D(), Relu(),
          Residual(Layers(Conv2D(2, 1), BatchNorm({.activation = kRelu}))), Dense(3, kRelu)));
  const NetworkGraph fused = FuseRelus(graph);
  CHECK(
      TextOf(fused) ==
      "convolution+relu(0)->1 max_pool(1)->2 relu(2)->3 convolution(3)->4 batch_norm+relu(4)->5 "
      "add+relu(5,3)->6 dense+relu(6)->7");
  CHECK(fused.output() == 7);
}

TEST_CASE("a ReLU stays if something else reads its input, or if it is the second") {
  NetworkGraph graph({4, 4, 2}, 0);
  const size_t sum = graph.Add({.kind = OperationKind::kAdd, .inputs = {0, 0}}, {4, 4, 2});
  const size_t relu = graph.AddActivation(sum, kRelu);
  graph.Add({.kind = OperationKind::kAdd, .inputs = {sum, relu}}, {4, 4, 2});
  CHECK(TextOf(FuseRelus(graph)) == "add(0,0)->1 relu(1)->2 add(1,2)->3");

  NetworkGraph twice({1, 1, 2}, 0);
  const size_t dense = twice.Add({.kind = OperationKind::kDense, .inputs = {0}}, {1, 1, 3});
  twice.AddActivation(twice.AddActivation(dense, kRelu), kRelu);
  CHECK(TextOf(FuseRelus(twice)) == "dense+relu(0)->1 relu(1)->2");
}

}  // namespace
}  // namespace dtrun::testing
