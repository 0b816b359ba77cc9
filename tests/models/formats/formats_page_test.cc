// docs/reference/formats.md: the page's C++ code is the code below. The page's Python code reads
// the files that the C++ code writes.

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "models/formats/model/saved_model.h"
#include "models/formats/onnx/onnx.h"
#include "models/formats/tensorboard/summary_writer.h"
#include "models/networks/network.h"
#include "tests/support/python.h"
#include "tests/support/text.h"

namespace dtrun::models {
namespace {

constexpr char kPage[] = "docs/reference/formats.md",
               kThisFile[] = "tests/models/formats/formats_page_test.cc";

// A layer that multiplies, as dropout does with the values that it keeps.
class Scale : public Dropout {
 public:
  explicit Scale(double factor) : Dropout(0), factor_(factor) {}
  std::string kind() const override { return "scale"; }
  LayerSettings settings() const override { return LayerSettings().Set("factor", factor_); }
  void Forward(const Pass&) override {}

 private:
  double factor_;
};

void WriteEvents(Sequential& model) {
  SummaryWriter train("logs/train"), validation("logs/validation");
  train.Graph(GraphOf(model.input_shape(), model.layers()));
  train.Text("command", "cnn_fmnist **--epochs 8**", 0);
  for (int epoch = 0; epoch < 3; ++epoch) {
    train.Scalar("epoch_loss", 1.0 / (epoch + 1), epoch);
    validation.Scalar("epoch_loss", 1.5 / (epoch + 1), epoch);
  }
  train.Flush();

  SummaryWriter session("logs");
  session.BeginSession(
      {{"optimizer", "adam"}, {"learning_rate", 1e-3}}, {"hparam/loss", "hparam/val_loss"});
  session.Scalar("hparam/val_loss", 0.5, 2);
  session.EndSession(SessionStatus::kSuccess);
}

void WriteModels(Sequential& model) {
  SaveModel(model, "model", {{"epoch", "8"}});
  const std::unique_ptr<Sequential> again = LoadModel("model");
  CHECK(again->description() == model.description());

  Sequential own({2, 2, 1}, Layers(Dense(3), Scale(2)), {});
  SaveModel(own, "scaled");
  LayerRegistry registry = LayerRegistry::BuiltIn();
  registry.Add("scale", [](const LayerSettings& settings) {
    return std::make_unique<Scale>(settings.Number("factor"));
  });
  const std::unique_ptr<Sequential> scaled = LoadModel("scaled", {.registry = registry});
  CHECK(scaled->layers()[1]->settings().Number("factor") == 2);

  ExportOnnx(model, "model.onnx");
}

// The page's code blocks in `language`.
std::vector<std::string> BlocksOf(const std::string& language) {
  std::vector<std::string> blocks;
  std::istringstream page(testing::ReadText(kPage));
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "```" + language) {
      inside = true;
      blocks.emplace_back();
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

TEST_CASE("the C++ code of docs/reference/formats.md is in this file") {
  const std::string code = testing::ReadText(kThisFile);
  const std::vector<std::string> blocks = BlocksOf("cpp");
  REQUIRE(blocks.size() == 5);
  for (const std::string& block : blocks) {
    std::istringstream lines(block);
    for (std::string line; std::getline(lines, line);) CHECK_THAT(code, Catch::Contains(line));
  }
}

TEST_CASE("the Python code of docs/reference/formats.md reads the files that the C++ code writes") {
  if (testing::PythonIsMissing()) return;
  testing::TemporaryFolder folder;
  const std::vector<std::string> blocks = BlocksOf("python");
  REQUIRE(blocks.size() == 3);
  std::string script = "import os\nos.chdir('" + folder.path() + "')\n";
  for (const std::string& block : blocks) script += block;
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  Sequential model({28, 28, 1}, NetworkC(10), {});
  WriteEvents(model);
  WriteModels(model);
  std::filesystem::current_path(here);
  const auto result = testing::RunPython({folder.Write("page.py", script)});
  INFO(result.err);
  CHECK(result.exit_code == 0);
}

}  // namespace
}  // namespace dtrun::models
