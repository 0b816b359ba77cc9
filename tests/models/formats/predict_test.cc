// predict under dtrun with saved models. Each test starts real processes.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "models/formats/model/saved_model.h"
#include "models/networks/network.h"
#include "tests/models/formats/brief_training.h"
#include "tests/models/idx_files.h"
#include "tests/models/image_step.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/text.h"

namespace dtrun::testing {
namespace {

using models::Sequential;
using Words = std::vector<std::string>;

constexpr uint32_t kImages = 101;  // not divisible by 2, 3 or 4 ranks

CommandResult Predict(int np, const Words& options) {
  Words argv = {"launcher/dtrun",   "--tag",          "none",      "-np",
                std::to_string(np), "models/predict", "--threads", "1"};
  argv.insert(argv.end(), options.begin(), options.end());
  return Run({.argv = argv});
}

std::string Digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

// A toy data set and a network trained on it for a few steps.
struct Fixture {
  TemporaryFolder data, model, results;
  double accuracy = 0, loss = 0;

  Fixture() {
    WriteToySet(data, kImages);
    const models::Dataset set = models::LoadDataset(data.path());
    Sequential network(
        {12, 12, 1}, models::NetworkC(4), {.micro_batch = 8, .micro_batches = 4, .seed = 1});
    TrainBriefly(network, set.train, 10, 0.01f);
    const models::Tally tally = models::Evaluate(network, set.test, {0, kImages});
    accuracy = tally.accuracy();
    loss = tally.mean_loss();
    SaveModel(network, model.path());
  }

  CommandResult Run(int np, Words options) const {
    options.insert(options.begin(), {model.path(), "--data-dir", data.path()});
    return Predict(np, options);
  }
};

TEST_CASE("predict reports the network's accuracy on any number of ranks") {
  const Fixture fixture;
  REQUIRE(fixture.accuracy > 0.25);
  std::string first_csv;
  for (int np : {1, 2, 4}) {
    const std::string json = fixture.results / "result.json", csv = fixture.results / "out.csv";
    const CommandResult result = fixture.Run(np, {"--json", json, "--output", csv});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    const nlohmann::json told = ReadJson(json);
    CHECK(told["ranks"] == np);
    CHECK(told["images"] == kImages);
    CHECK(told["accuracy"].get<double>() == fixture.accuracy);
    CHECK(told["loss"].get<double>() == Approx(fixture.loss));
    CHECK_THAT(result.out, Catch::Contains("\nTest        accuracy " + Digits(fixture.accuracy)));
    CHECK_THAT(result.out, Catch::Contains(" on 101 images of " + fixture.data.path()));
    const std::string text = ReadText(csv);
    if (first_csv.empty()) first_csv = text;
    CHECK(text == first_csv);
  }
}

TEST_CASE("the output has the prediction and the probabilities of each image in order") {
  const Fixture fixture;
  const std::string csv = fixture.results / "out.csv";
  REQUIRE(fixture.Run(3, {"--split", "train", "--output", csv}).exit_code == 0);
  const models::Dataset set = models::LoadDataset(fixture.data.path());
  const auto network = models::LoadModel(fixture.model.path());
  std::istringstream lines(ReadText(csv));
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(line == "prediction,p0,p1,p2,p3");
  uint64_t correct = 0, count = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::vector<double> values;
    for (std::string field; std::getline(fields, field, ',');)
      values.push_back(std::strtod(field.c_str(), nullptr));
    REQUIRE(values.size() == 5);
    CHECK(values[1] + values[2] + values[3] + values[4] == Approx(1));
    const auto largest = std::max_element(values.begin() + 1, values.end()) - values.begin() - 1;
    CHECK(values[0] == double(largest));
    correct += largest == set.train.labels[count];
    ++count;
  }
  CHECK(count == kImages);
  CHECK(correct == models::Evaluate(*network, set.train, {0, kImages}).correct);
}

void CheckRefused(const Words& options, int exit_code, const std::string& line) {
  const int np = GENERATE(1, 2);
  const CommandResult result = Predict(np, options);
  CHECK(result.exit_code == exit_code);
  CHECK(result.err == "predict: " + line + "\n");
  CHECK(result.out.empty());
}

TEST_CASE("an invalid command line gives a one-line error") {
  CheckRefused({}, 2, "MODEL is required (see --help)");
  CheckRefused({"m", "--split", "all"}, 2, "--split: 'all', expected test or train (see --help)");
}

TEST_CASE("a missing or invalid model gives a one-line error on any number of ranks") {
  TemporaryFolder folder;
  CheckRefused(
      {folder / "none"}, 66, folder / "none" + std::string(": not found, expected a saved model"));
  CheckRefused({folder.path()}, 66, folder.path() + ": has no model.json, expected a saved model");
}

TEST_CASE("images of another size and labels beyond the model's outputs are refused") {
  const Fixture fixture;
  TemporaryFolder other;
  for (const char* split : {"train", "t10k"}) {
    WriteFile(other / (std::string(split) + "-images-idx3-ubyte"), Idx({2, 12, 12}, Bytes(288)));
    WriteFile(other / (std::string(split) + "-labels-idx1-ubyte"), Idx({2}, {0, 7}));
  }
  CheckRefused(
      {fixture.model.path(), "--data-dir", other.path()}, 66,
      other.path() + ": a label 7, expected labels below the 4 outputs of the model in " +
          fixture.model.path());
  for (const char* split : {"train", "t10k"})
    WriteFile(other / (std::string(split) + "-images-idx3-ubyte"), Idx({2, 6, 8}, Bytes(96)));
  CheckRefused(
      {fixture.model.path(), "--data-dir", other.path()}, 66,
      other.path() + ": images of 6x8x1, expected 12x12x1 as the model in " + fixture.model.path() +
          " wants them");
}

TEST_CASE("an output file that cannot be written is exit code 73 before any work") {
  const Fixture fixture;
  const std::string csv = fixture.results / "none/out.csv";
  const CommandResult result = fixture.Run(1, {"--output", csv});
  CHECK(result.exit_code == 73);
  CHECK_THAT(result.err, Catch::Contains("--output: " + csv + ": cannot be written"));
  CHECK(result.out.empty());
}

}  // namespace
}  // namespace dtrun::testing
