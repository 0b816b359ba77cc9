#include "models/programs/synthetic_run.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "models/message_text.h"
#include "models/networks/network.h"
#include "models/programs/rank_main.h"

namespace dtrun::models {
namespace {

// Accepts only an integer from `least` to `most`.
CLI::Validator Integer(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        uint64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && stop == end && value >= least && value <= most) return "";
        return Text("'", text, "', expected an integer from ", least, " to ", most);
      },
      "", "integer");
}

std::string KnownModels() {
  std::string names;
  for (const std::string& name : NetworkNames()) names += Text(names.empty() ? "" : ", ", name);
  return names;
}

CLI::Validator KnownModel() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        for (const std::string& name : NetworkNames()) {
          if (text == name) return "";
        }
        return Text("'", text, "' is not known, expected one of ", KnownModels());
      },
      "", "model");
}

constexpr uint64_t kMost = 1000000;

void AddOptions(CLI::App& app, SyntheticOptions& o) {
  app.add_option("--model", o.model, Text("One of ", KnownModels(), " [resnet50]"))
      ->check(KnownModel())
      ->type_name("NAME");
  app.add_option("--batch-size", o.batch_size, "Images per rank and optimizer step [32]")
      ->check(Integer(1, kMost))
      ->type_name("N");
  app.add_option(
         "--num-warmup-batches", o.num_warmup_batches, "Steps before those that are timed [10]")
      ->check(Integer(0, kMost))
      ->type_name("N");
  app.add_option(
         "--num-batches-per-iter", o.num_batches_per_iter, "Steps that are timed at once [10]")
      ->check(Integer(1, kMost))
      ->type_name("N");
  app.add_option("--num-iters", o.num_iters, "Timings [10]")
      ->check(Integer(1, kMost))
      ->type_name("N");
  app.add_option("--image-size", o.image_size, "Height and width of the images [the model's]")
      ->check(Integer(1, 4096))
      ->type_name("N");
  app.add_option("--threads", o.threads, "Compute threads per rank [the CPUs that are its own]")
      ->check(Integer(1, 4096))
      ->type_name("N");
  app.add_flag(
      "--sync-batch-norm", o.synchronized,
      "Normalise by means and variances of the global batch, over all ranks");
  app.add_flag(
      "!--reduce-after-backward", o.overlap,
      "Do not reduce gradients while the backward pass runs: shows what that is worth");
  app.add_option("--json", o.json, "Write the result to this file")->type_name("FILE");
}

}  // namespace

ParsedSyntheticOptions ParseSyntheticOptions(int argc, const char* const* argv) {
  ParsedSyntheticOptions parsed;
  CLI::App app(
      "Measures training steps on made-up images, alone or as the ranks of a dtrun job: images per "
      "second of each rank and of all.\n"
      "Exit codes: 0 success, 2 usage, 73 the --json file could not be written, 76 ranks disagree.",
      "synthetic_benchmark");
  AddOptions(app, parsed.options);
  parsed.error = ParseCommandLine(app, argc, argv, parsed.help, [&] {
    const bool names_no_file = app.count("--json") > 0 && parsed.options.json.empty();
    return names_no_file ? "--json: '', expected a file name" : "";
  });
  return parsed;
}

std::string SharedSettings(const SyntheticOptions& o) {
  return Text(
      "--model=", o.model, "\n--batch-size=", o.batch_size,
      "\n--num-warmup-batches=", o.num_warmup_batches,
      "\n--num-batches-per-iter=", o.num_batches_per_iter, "\n--num-iters=", o.num_iters,
      "\n--image-size=", o.image_size, "\n--sync-batch-norm=", o.synchronized,
      "\n--reduce-after-backward=", !o.overlap, "\n");
}

namespace {

Rate PerRank(const SyntheticResult& result) {
  const Rate total = RateOf(result.images_per_s);
  return {total.mean / result.ranks, total.deviation / result.ranks};
}

std::string ToString(const Rate& rate) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f +-%.1f", rate.mean, rate.deviation);
  return text;
}

}  // namespace

Rate RateOf(const std::vector<double>& iterations) {
  Rate rate;
  const auto count = static_cast<double>(iterations.size());
  for (const double value : iterations) rate.mean += value / count;
  double variance = 0;
  for (const double value : iterations) variance += std::pow(value - rate.mean, 2) / count;
  rate.deviation = 1.96 * std::sqrt(variance);
  return rate;
}

std::string SummaryOf(const SyntheticResult& result) {
  return Text(
      "Img/sec per rank: ", ToString(PerRank(result)), "\nTotal img/sec on ", result.ranks,
      result.ranks == 1 ? " rank: " : " ranks: ", ToString(RateOf(result.images_per_s)));
}

std::string ToJson(const SyntheticResult& result) {
  const Rate rank = PerRank(result), total = RateOf(result.images_per_s);
  const nlohmann::ordered_json json = {
      {"model", result.model},
      {"ranks", result.ranks},
      {"threads", result.threads},
      {"batch_size", result.batch_size},
      {"parameters", result.parameters},
      {"images_per_s_per_rank", rank.mean},
      {"images_per_s_per_rank_deviation", rank.deviation},
      {"images_per_s", total.mean},
      {"images_per_s_deviation", total.deviation},
      {"iterations", result.images_per_s}};
  return json.dump() + "\n";
}

}  // namespace dtrun::models
