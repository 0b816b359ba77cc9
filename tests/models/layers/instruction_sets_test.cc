// Tests the instruction sets from SSE4.1 on for which oneDNN can generate code on this CPU. oneDNN
// fixes the set when a process first uses it, so each set needs its own process. The process runs
// this program with ONEDNN_MAX_CPU_ISA and the name of a hidden test case, which prints its
// results.

#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dense.h"
#include "models/layers/pooling.h"
#include "models/networks/network.h"
#include "models/onednn/onednn.h"
#include "models/optim/sgd.h"
#include "tests/conformance/suite.h"
#include "tests/models/layers/gradient_check.h"
#include "tests/support/subprocess.h"

namespace dtrun::models {
namespace {

// With --full all sets; otherwise the lowest, the usual and the highest.
std::vector<std::string> Sets() {
  if (!testing::RunsInFull()) return {"SSE41", "AVX2", "AVX512_CORE_BF16"};
  return {"SSE41", "AVX", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16"};
}

// Runs the hidden case `name` on at most `set`. Returns "" if this CPU does not have the set.
std::string OutputOn(const std::string& set, const std::string& name) {
  const testing::CommandResult result = testing::Run(
      {.argv = {"/proc/self/exe", name},
       .environment = {{"ONEDNN_MAX_CPU_ISA", set}},
       .timeout = std::chrono::seconds(120)});
  INFO(set << ": " << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  if (result.out.find("instruction set: " + set + "\n") != std::string::npos) return result.out;
  WARN(set << " is not tested: this CPU does not have it");
  return "";
}

// The layers are built once for all cases.
const std::string& Implementations(const std::string& set) {
  static std::map<std::string, std::string> outputs;
  const auto found = outputs.find(set);
  if (found != outputs.end()) return found->second;
  return outputs[set] = OutputOn(set, "child: implementations");
}

void SayInstructionSet() { std::printf("instruction set: %s\n", onednn::InstructionSet().c_str()); }

// The values after "word: " in a child's output.
std::vector<std::string> LinesWith(const std::string& output, const std::string& word) {
  std::vector<std::string> values;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(word + ": ", 0) == 0) values.push_back(line.substr(word.size() + 2));
  return values;
}

// ---- No reference implementation --------------------------------------------------------------

void Report(const std::string& name, const Shape& input, LayerList layers, DType dtype) {
  const Sequential model(
      input, std::move(layers), {.micro_batch = 2, .micro_batches = 1, .seed = 1, .dtype = dtype});
  REQUIRE(!model.implementations().empty());
  for (const LayerImplementation& part : model.implementations())
    std::printf(
        "part: %s %s, %s, %s: %s\n", name.c_str(), NameOf(model.dtype()), part.layer.c_str(),
        part.direction.c_str(), part.implementation.c_str());
  for (const std::string& slow : model.slow_parts()) std::printf("slow: %s\n", slow.c_str());
}

// Layers with few, many and odd numbers of channels, and several window sizes, strides and
// paddings.
void ReportLayers(DType dtype) {
  for (const int channels : {1, 3, 16, 30}) {
    for (const int filters : {8, 10, 64}) {
      for (const int size : {1, 3, 5, 7}) {
        for (const int stride : {1, 2}) {
          const Conv2DOptions options = {
              .stride = stride, .padding = Padding::Same(), .activation = Activation::kRelu};
          Report(
              "convolution", {17, 15, channels},
              Layers(Conv2D(filters, size, options), Conv2D(filters, size, options), Dense(3)),
              dtype);
        }
      }
    }
    Report(
        "pooling", {16, 16, channels},
        Layers(
            Conv2D(24, 3, Activation::kRelu), MaxPool2D(2), Conv2D(32, 3),
            MaxPool2D({.size = 3, .stride = 2, .padding = Padding::Pixels(1)}), BatchNorm(),
            AveragePool2D({.size = 3, .stride = 1, .padding = Padding::Same()}), Dense(3)),
        dtype);
  }
}

TEST_CASE("child: implementations", "[.]") {
  SayInstructionSet();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ReportLayers(dtype);
    for (const std::string& name : NetworkNames()) {
      // Small images suffice, because the layers are the same.
      const bool deep = name.rfind("resnet", 0) == 0;
      Network network = NetworkByName(name, {.image = deep ? 64 : 0});
      Report(name, network.input, std::move(network.layers), dtype);
    }
  }
}

TEST_CASE("no direction of a heavy layer uses a reference implementation on any instruction set") {
  for (const std::string& set : Sets()) {
    const std::string& output = Implementations(set);
    if (output.empty()) continue;
    CHECK(LinesWith(output, "part").size() > 1000);
    for (const std::string& part : LinesWith(output, "part")) {
      const std::string implementation = part.substr(part.rfind(": ") + 2);
      INFO(set << ": " << part);
      CHECK(implementation.rfind("ref", 0) != 0);
      CHECK(implementation.rfind("simple", 0) != 0);
    }
    CHECK(LinesWith(output, "slow").empty());
  }
}

TEST_CASE("a bf16 network computes in bf16 only if the CPU multiplies bf16 values") {
  for (const std::string& set : Sets()) {
    const std::string& output = Implementations(set);
    if (output.empty()) continue;
    const bool in_bf16 = output.find("part: C bf16") != std::string::npos;
    INFO(set);
    CHECK(in_bf16 == (set == "AVX512_CORE_BF16"));
  }
}

TEST_CASE("a reference implementation is reported once and in one line with its layer") {
  const std::vector<std::string> slow = SlowParts(
      {{"layer 0 (conv2d 32 3x3)", "forward", "jit:avx2"},
       {"layer 0 (conv2d 32 3x3)", "backward weights", "ref:any"},
       {"layer 1 (dense 10)", "forward", "dnnl_sgemm"}});
  REQUIRE(slow.size() == 1);
  CHECK(
      slow[0] ==
      "layer 0 (conv2d 32 3x3): backward weights is computed slowly, by ref:any: oneDNN " +
          onednn::Version() + " has nothing faster for it on " + onednn::InstructionSet());
}

// ---- The same training ------------------------------------------------------------------------

TEST_CASE("child: losses", "[.]") {
  SayInstructionSet();
  Network network = NetworkByName("C");
  testing::CheckedNetwork checked(
      network.input, std::move(network.layers), 24,
      {.micro_batch = 8, .micro_batches = 3, .seed = 3});
  Sgd sgd(checked.model().parameters(), {.learning_rate = 0.01});
  for (int step = 0; step < 20; ++step) {
    std::printf("loss: %.9g\n", checked.Train() / checked.examples());
    sgd.Step();
  }
}

TEST_CASE("the losses of 20 steps of SGD agree between instruction sets within 1e-4") {
  std::map<std::string, std::vector<std::string>> losses;
  for (const std::string& set : Sets()) {
    const std::string output = OutputOn(set, "child: losses");
    if (!output.empty()) losses[set] = LinesWith(output, "loss");
  }
  const std::vector<std::string>& expected = losses.begin()->second;
  REQUIRE(expected.size() == 20);
  CHECK(std::stod(expected.back()) < 0.9 * std::stod(expected.front()));
  for (const auto& [set, found] : losses) {
    REQUIRE(found.size() == expected.size());
    for (size_t step = 0; step < found.size(); ++step) {
      INFO(set << ", step " << step);
      CHECK(std::stod(found[step]) == Approx(std::stod(expected[step])).epsilon(1e-4));
    }
  }
}

// ---- The same gradients -----------------------------------------------------------------------

// layers_test tests the CPU's own set. Without --full, AVX2 stands for the others.
TEST_CASE("layer gradients match float64 differences on every instruction set") {
  for (const std::string& set : Sets()) {
    if (!testing::RunsInFull() && (set != "AVX2" || set == onednn::InstructionSet())) continue;
    // The tests of layers_test.cc, shape_layers_test.cc and batch_norm_test.cc.
    const testing::CommandResult result = testing::Run(
        {.argv =
             {"tests/models/layers/layers_test", "-#",
              "[#layers_test],[#shape_layers_test],[#batch_norm_test]"},
         .environment = {{"ONEDNN_MAX_CPU_ISA", set}},
         .timeout = std::chrono::seconds(360)});
    INFO(set << ":\n" << result.out << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("No tests ran") == std::string::npos);
  }
}

}  // namespace
}  // namespace dtrun::models
