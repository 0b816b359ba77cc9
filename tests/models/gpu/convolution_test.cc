// All ways to compute a convolution with cuDNN, real or simulated, against the definition in f64.
// Simulated cuDNN also proposes unusable ways.

#include "models/gpu/convolution.h"

#include <catch2/catch.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu_simulator/graph.h"
#include "tests/models/gpu/convolution_rig.h"

namespace dtrun::testing {
namespace {

using namespace models;  // NOLINT: their names are the subject

bool OnSimulatedGpu() { return TestStream().device().name() == "simulated GPU"; }

Direction AnyDirection() {
  return GENERATE(Direction::kForward, Direction::kFilters, Direction::kInput);
}

// The error of an unusable way, or "".
std::string Problem(ConvolutionWay& way, const ConvolutionExample& example, Direction direction) {
  const gpu::DeviceMemory result = example.Result(direction);
  const gpu::DeviceScope scope(TestStream().device());
  try {
    way.Prepare();
    MillisecondsOf(TestStream(), [&] { way.Enqueue(example.Tensors(direction, result)); });
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("each usable way computes the convolution with the same bits each time") {
  const Typed type = AnyType();
  const Direction direction = AnyDirection();
  const auto list = GENERATE(GraphWays, ClassicWays);
  const ConvolutionExample example(type);
  int used = 0;
  for (const auto& way : list(example.setting(), direction)) {
    INFO(type.name << ", direction " << static_cast<int>(direction) << ", " << way->name());
    if (!Problem(*way, example, direction).empty()) continue;
    ++used;
    const Doubles first = example.Computed(*way, direction);
    CHECK(RelativeDistance(first, example.Expected(direction)) < type.tolerance);
    CHECK(example.Computed(*way, direction) == first);
  }
  CHECK(used > 0);
}

Convolution::Options AnyWindow() {
  using Options = Convolution::Options;
  return GENERATE(
      Options{
          .input = {13, 12, 3},
          .output = {7, 6, 16},
          .size = 7,
          .stride = 2,
          .padding = {3, 3},
          .rows = 2},
      Options{.input = {5, 6, 16}, .output = {3, 3, 8}, .size = 1, .stride = 2, .rows = 3},
      Options{
          .input = {8, 6, 16},
          .output = {3, 3, 8},
          .stride = 2,
          .padding = {.columns = 1},
          .rows = 3},
      Options{
          .input = {4, 5, 8}, .output = {6, 5, 8}, .padding = {.rows = 2, .columns = 1}, .rows = 3},
      Options{.input = {5, 6, 5}, .output = {5, 6, 7}, .padding = {1, 1}, .rows = 3});
}

TEST_CASE("windows of any size, stride and padding match the definition for any channels") {
  const Typed type = AnyType();
  Convolution::Options window = AnyWindow();
  window.tf32 = Tf32::kOff;
  const ConvolutionExample example(type, window);
  for (const Direction direction : {Direction::kForward, Direction::kFilters, Direction::kInput}) {
    int used = 0;
    for (const auto list : {GraphWays, ClassicWays}) {
      const int before = used;
      for (const auto& way : list(example.setting(), direction)) {
        INFO(
            type.name << ", size " << example.options.size << ", direction "
                      << static_cast<int>(direction) << ", " << way->name());
        if (!Problem(*way, example, direction).empty()) continue;
        ++used;
        CHECK(
            RelativeDistance(example.Computed(*way, direction), example.Expected(direction)) <
            type.tolerance);
      }
      if (OnSimulatedGpu()) CHECK(used > before);
    }
    CHECK(used > 0);
  }
}

TEST_CASE("an engine is proposed only if the options allow its numerical notes") {
  if (!OnSimulatedGpu()) {
    WARN("SKIPPED: these are simulated cuDNN's engines");
    return;
  }
  const Direction direction = AnyDirection();
  const auto engines = [&](const ConvolutionExample& example) {
    std::string names;
    for (const auto& way : GraphWays(example.setting(), direction))
      names += way->name().substr(std::string("graph engine").size()) + ",";
    return names;
  };
  const Typed f32{"f32", 4, 1e-5}, bf16{"bf16", 2, 1e-2};
  CHECK(
      engines(ConvolutionExample(f32, Tf32::kAllowed)) ==
      " 12, 13, 14, 15, 18, 19 2=4 13=0, 19 2=1 13=1, 1,");
  CHECK(engines(ConvolutionExample(f32, Tf32::kOff)) == " 15, 18, 1,");
  CHECK(engines(ConvolutionExample(bf16)) == " 12, 13, 14, 15, 19 2=4 13=0, 19 2=1 13=1, 1,");
}

TEST_CASE("an unusable way reports the reason and cuDNN's error") {
  if (!OnSimulatedGpu()) {
    WARN("SKIPPED: these are simulated cuDNN's engines");
    return;
  }
  const Direction direction = AnyDirection();
  const ConvolutionExample example(Typed{"bf16", 2, 1e-2});
  std::string problems;
  for (const auto& way : GraphWays(example.setting(), direction)) {
    const std::string problem = Problem(*way, example, direction);
    if (!problem.empty()) problems += way->name() + ": " + problem + "\n";
  }
  CHECK(
      problems ==
      "graph engine 12: graph engine 12 wants a workspace of 1125899906842624 bytes, has 33554432\n"
      "graph engine 13: cudnnBackendFinalize (descriptor type 5) failed: an error of simulated "
      "cuDNN: nothing to compile it with\n"
      "graph engine 14: cudnnBackendExecute failed: an error of simulated cuDNN: an engine that "
      "does not work\n"
      "graph engine 15: cudnnBackendExecute failed: an error of simulated cuDNN: an engine that "
      "does not work\n");
}

TEST_CASE("the chosen ways compute the convolution with and without a graph and are named") {
  const Typed type = AnyType();
  ConvolutionExample example(type);
  example.options.selection = GENERATE(Selection::kFirst, Selection::kFastest);
  ChosenConvolution chosen(example);
  INFO(chosen.convolution.choice());
  const std::string way =
      "(graph engine \\d+( \\d+=-?\\d+)*|classic algorithm \\d+ math \\d) \\([^ ]+ ms\\)";
  CHECK(std::regex_match(
      chosen.convolution.choice(),
      std::regex("forward " + way + ", filters " + way + ", input " + way)));
  const auto results = chosen.Results([](const auto& enqueue) { enqueue(); });
  for (const Direction direction : {Direction::kForward, Direction::kFilters, Direction::kInput}) {
    const auto& got = results[static_cast<size_t>(direction)];
    CHECK(RelativeDistance(got, example.Expected(direction)) < type.tolerance);
  }
  const auto in_graph = chosen.Results([](const auto& enqueue) {
    const gpu::Graph graph(TestStream(), enqueue);
    graph.Launch(TestStream().get());
    TestStream().Synchronize();
  });
  CHECK(in_graph == results);
}

TEST_CASE("convolutions with equal shapes and other windows do not share a choice") {
  // Both windows make 3x3 outputs from 5x5 inputs.
  const Typed type = AnyType();
  Convolution::Options options{.input = {5, 5, 16}, .output = {3, 3, 8}, .rows = 7};
  const ConvolutionExample plain(type, options);
  options.stride = 2;
  options.padding = {1, 1};
  const ConvolutionExample strided(type, options);
  for (const ConvolutionExample* example : {&plain, &strided}) {
    ChosenConvolution chosen(*example);
    CHECK_FALSE(chosen.IsUntouched());
    const auto results = chosen.Results([](const auto& enqueue) { enqueue(); });
    CHECK(RelativeDistance(results[0], example->Expected(Direction::kForward)) < type.tolerance);
  }
}

TEST_CASE("convolutions with equal options make the same choice in any order") {
  const Typed type = AnyType();
  const int rows = 5;  // a number that no other test uses
  const ConvolutionExample example(type, Tf32::kOff, rows);
  std::vector<std::string> choices(4);
  std::vector<std::thread> threads;
  for (std::string& choice : choices) {
    threads.emplace_back([&choice, &example] {
      const gpu::Stream stream(TestStream().device());
      const gpu::DeviceMemory input = example.Result(Direction::kInput);
      const gpu::DeviceMemory filters = example.Result(Direction::kFilters);
      const gpu::DeviceMemory output = example.Result(Direction::kForward);
      const gpu::DeviceMemory workspace(stream.device(), example.workspace.bytes());
      const Convolution convolution(
          stream, example.options, {workspace.as<void>(), workspace.bytes()}, input.as<void>(),
          filters.as<void>(), output.as<void>());
      choice = convolution.choice();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(choices == std::vector<std::string>(4, choices[0]));
  const ChosenConvolution again(example);
  CHECK(again.convolution.choice() == choices[0]);
  CHECK(again.IsUntouched());  // no way was tried again
  const ConvolutionExample other(type, Tf32::kOff, rows + 1);
  CHECK_FALSE(ChosenConvolution(other).IsUntouched());
}

TEST_CASE("Selection::kFirst takes the first working way") {
  const ConvolutionExample example(AnyType());
  // The first working way, alternating between graph and classic ways.
  const auto of_graph = GraphWays(example.setting(), Direction::kForward);
  const auto classic = ClassicWays(example.setting(), Direction::kForward);
  std::string first;
  for (size_t i = 0; first.empty() && i < 16; ++i) {
    for (const auto* ways : {&of_graph, &classic}) {
      const bool works = first.empty() && i < ways->size() &&
                         Problem(*(*ways)[i], example, Direction::kForward).empty();
      if (works) first = (*ways)[i]->name();
    }
  }
  REQUIRE_FALSE(first.empty());
  const ChosenConvolution chosen(example);
  CHECK_THAT(chosen.convolution.choice(), Catch::StartsWith("forward " + first + " ("));
}

TEST_CASE("a convolution that cuDNN cannot compute is refused with its direction and sizes") {
  ConvolutionExample example(Typed{"bf16", 2, 1e-2});
  example.options.output = {4, 4, 8};  // the input gives 3x4
  CHECK_THROWS_WITH(
      ChosenConvolution(example),
      Catch::Contains(
          "'forward' of a convolution from 5x6x16 to 4x4x8 in bf16, 3 rows, 3x3 stride 1, "
          "padding 0x0: "));
}

}  // namespace
}  // namespace dtrun::testing
