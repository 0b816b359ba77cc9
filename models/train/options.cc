#include "models/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/text.h"

namespace dtrun::models {
namespace {

// An integer from `least` to `most`, and nothing else.
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

// A number above (or from) `least` and below `most`.
enum class Bound { kIncluded, kExcluded };
CLI::Validator Number(double least, Bound bound, double most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool in_range =
            (bound == Bound::kIncluded ? value >= least : value > least) && value < most;
        if (error == std::errc() && stop == end && in_range) return "";
        return Text(
            "'", text, "', expected a number ", bound == Bound::kIncluded ? "from " : "above ",
            least, " and below ", most);
      },
      "", "number");
}

// "a, b or c"
std::string Alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += Text(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

CLI::Validator OneOf(const std::vector<std::string>& names) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return "";
        return Text("'", text, "', expected ", Alternatives(names));
      },
      "", "name");
}

constexpr uint64_t kMost = 1000000000;

void AddBatchOptions(CLI::App& app, TrainOptions& o) {
  app.add_option("--epochs", o.epochs, "Passes over the training data [8]")
      ->check(Integer(1, 1000000))
      ->type_name("N");
  auto* batch =
      app.add_option("--batch-size", o.batch_size, "Examples per rank and optimizer step [1024]");
  batch->check(Integer(1, kMost))->type_name("N");
  app.add_option(
         "--global-batch-size", o.global_batch_size,
         "Examples of all ranks together per optimizer step, instead of --batch-size")
      ->check(Integer(1, kMost))
      ->type_name("N")
      ->excludes(batch);
  app.add_option(
         "--steps-per-epoch", o.steps_per_epoch,
         "Steps after which an epoch ends [as many as use every example once]")
      ->check(Integer(1, kMost))
      ->type_name("N");
  app.add_option("--max-steps", o.max_steps, "Steps after which training ends [no limit]")
      ->check(Integer(1, kMost))
      ->type_name("N");
}

void AddOptimizerOptions(CLI::App& app, TrainOptions& o) {
  OptimizerSettings& settings = o.optimizer_settings;
  app.add_option("--optimizer", o.optimizer, Alternatives(OptimizerNames()) + " [adam]")
      ->check(OneOf(OptimizerNames()))
      ->type_name("NAME");
  app.add_option(
         "--learning-rate", settings.learning_rate, "Of the optimizer [its own: adam 0.001]")
      ->check(Number(0, Bound::kExcluded, 1000))
      ->type_name("X");
  app.add_option("--momentum", settings.momentum, "Of sgd, lars and muon [0, 0.9, 0.95]")
      ->check(Number(0, Bound::kIncluded, 1))
      ->type_name("X");
  app.add_flag_callback(
      "--nesterov", [&settings] { settings.nesterov = true; },
      "Nesterov's momentum, of sgd and lars; muon's is");
  app.add_option(
         "--weight-decay", settings.weight_decay,
         "Of all but adam; biases are not decayed [0; adamw 0.004, lars 0.0001, lamb 0.01]")
      ->check(Number(0, Bound::kIncluded, 1000))
      ->type_name("X");
  app.add_option("--beta1", settings.beta1, "Of adam, adamw, lamb and muon's biases [0.9]")
      ->check(Number(0, Bound::kIncluded, 1))
      ->type_name("X");
  app.add_option("--beta2", settings.beta2, "Likewise [0.999; muon 0.95]")
      ->check(Number(0, Bound::kIncluded, 1))
      ->type_name("X");
  app.add_option("--schedule", o.schedule, Alternatives(ScheduleNames()) + " [cooldown]")
      ->check(OneOf(ScheduleNames()))
      ->type_name("NAME");
  app.add_option(
         "--cooldown", o.cooldown,
         "Of --schedule cooldown: last part of the training, over which the learning rate falls to "
         "0 in a straight line [0.25]")
      ->check(Number(0, Bound::kIncluded, 1))
      ->type_name("X");
  app.add_option(
         "--warmup-steps", o.warmup_steps,
         "Steps over which the learning rate rises to its value, in front of the schedule [0]")
      ->check(Integer(0, kMost))
      ->type_name("N");
  app.add_option("--seed", o.seed, "Of initial weights, order of examples and dropout [1]")
      ->check(Integer(0, UINT64_MAX))
      ->type_name("N");
}

void AddSurroundings(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--data-dir", o.data_dir,
         Text("Folder of an IDX data set, gzipped or not [", kFashionMnistDir, "]"))
      ->type_name("DIR");
  app.add_option("--threads", o.threads, "Compute threads per rank [the CPUs that are its own]")
      ->check(Integer(1, 4096))
      ->type_name("N");
  app.add_option(
         "--verbose", o.verbose,
         "0: the result alone; 1: a progress line per epoch where there is a terminal; 2: one line "
         "per epoch [1]")
      ->check(Integer(0, 2))
      ->type_name("0|1|2");
  app.add_option("--json", o.json, "Write the result to this file")->type_name("FILE");
  app.add_flag(
      "!--reduce-after-backward", o.overlap,
      "Do not reduce gradients while the backward pass runs: shows what that is worth");
  app.add_flag("--log-steps", o.log_steps, "With the loss of every step in the --json file");
}

std::string ErrorBetweenOptions(const TrainOptions& o, const CLI::App& app) {
  if (o.cooldown && o.schedule != "cooldown")
    return Text("--cooldown: given with --schedule ", o.schedule, ", expected --schedule cooldown");
  if (o.log_steps && o.json.empty()) return "--log-steps: expected with --json FILE";
  if (app.count("--json") > 0 && o.json.empty()) return "--json: '', expected a file name";
  return "";
}

// The value, "default" without one.
template <typename Value>
std::string Given(const std::optional<Value>& value) {
  return value ? Text(*value) : "default";
}

// One line: CLI11 has errors of several.
std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

ParsedOptions ParseOptions(int argc, const char* const* argv) {
  ParsedOptions parsed;
  CLI::App app(
      "Trains a convolutional network on Fashion-MNIST, alone or as the ranks of a dtrun job.\n"
      "Exit codes: 0 success, 2 usage, 66 data unusable, 73 the --json file could not be written, "
      "76 ranks disagree.",
      "cnn_fmnist");
  AddBatchOptions(app, parsed.options);
  AddOptimizerOptions(app, parsed.options);
  AddSurroundings(app, parsed.options);
  try {
    app.parse(argc, argv);
    parsed.error = ErrorBetweenOptions(parsed.options, app);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help();
  } catch (const CLI::ParseError& error) {
    parsed.error = OneLine(error.what());
  }
  return parsed;
}

std::string SharedSettings(const TrainOptions& o) {
  const OptimizerSettings& s = o.optimizer_settings;
  return Text(
      "--epochs=", o.epochs, "\n--batch-size=", o.batch_size,
      "\n--global-batch-size=", o.global_batch_size, "\n--steps-per-epoch=", o.steps_per_epoch,
      "\n--max-steps=", o.max_steps, "\n--optimizer=", o.optimizer,
      "\n--learning-rate=", Given(s.learning_rate), "\n--momentum=", Given(s.momentum),
      "\n--nesterov=", Given(s.nesterov), "\n--weight-decay=", Given(s.weight_decay),
      "\n--beta1=", Given(s.beta1), "\n--beta2=", Given(s.beta2), "\n--schedule=", o.schedule,
      "\n--cooldown=", Given(o.cooldown), "\n--warmup-steps=", o.warmup_steps, "\n--seed=", o.seed,
      "\n--verbose=", o.verbose, "\n--log-steps=", o.log_steps,
      "\n--reduce-after-backward=", !o.overlap, "\n");
}

}  // namespace dtrun::models
