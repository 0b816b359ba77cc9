#include <catch2/catch.hpp>

#include "models/programs/synthetic_run.h"
#include "tests/support/json.h"

namespace dtrun::models {
namespace {

using testing::ParseJson;

SyntheticOptions ParseSynthetic(const std::vector<const char*>& words, std::string& error) {
  std::vector<const char*> argv = {"synthetic_benchmark"};
  argv.insert(argv.end(), words.begin(), words.end());
  const ParsedSyntheticOptions parsed = ParseSyntheticOptions(int(argv.size()), argv.data());
  error = parsed.error;
  return parsed.options;
}

TEST_CASE("rates are the mean and 1.96 standard deviations of the iterations") {
  const Rate rate = RateOf({9, 11});
  CHECK(rate.mean == 10);
  CHECK(rate.deviation == Approx(1.96));
  CHECK(RateOf({5}).deviation == 0);
}

TEST_CASE("the summary has the images per second of a rank and of all ranks") {
  const SyntheticResult result{"resnet50", 2, 1, 32, 25557032, {18, 22}};
  CHECK(SummaryOf(result) == "Img/sec per rank: 10.0 +-2.0\nTotal img/sec on 2 ranks: 20.0 +-3.9");
  const nlohmann::json json = ParseJson(ToJson(result));
  CHECK(json["model"] == "resnet50");
  CHECK(json["ranks"] == 2);
  CHECK(json["batch_size"] == 32);
  CHECK(json["images_per_s"] == 20.0);
  CHECK(json["images_per_s_per_rank"] == 10.0);
  CHECK(json["images_per_s_per_rank_deviation"].get<double>() == Approx(1.96));
  CHECK(json["iterations"] == std::vector<double>{18, 22});
}

TEST_CASE("the defaults are ResNet-50 and 32 images and 10 iterations of 10 batches") {
  std::string error;
  const SyntheticOptions options = ParseSynthetic({}, error);
  CHECK(error.empty());
  CHECK(options.model == "resnet50");
  CHECK(options.batch_size == 32);
  CHECK((options.num_warmup_batches == 10 && options.num_batches_per_iter == 10));
  CHECK(options.num_iters == 10);
}

TEST_CASE("an invalid option is one line with the found and the expected value") {
  std::string error;
  ParseSynthetic({"--model", "vgg"}, error);
  CHECK(
      error == "--model: 'vgg' is not known, expected one of A, B, C, D, mlp, resnet18, resnet50");
  ParseSynthetic({"--num-iters", "0"}, error);
  CHECK(error == "--num-iters: '0', expected an integer from 1 to 1000000");
  ParseSynthetic({"--json", ""}, error);
  CHECK(error == "--json: '', expected a file name");
}

}  // namespace
}  // namespace dtrun::models
