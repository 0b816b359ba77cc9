#include "models/programs/training_options.h"

#include <dtrun/strategies.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "models/data/sampling.h"
#include "models/message_text.h"
#include "models/optim/by_name.h"
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

// Accepts only a number above (or from) `least` and below `most`.
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

// The names as a completion needs them: "fit|custom".
std::string Choice(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += Text(text.empty() ? "" : "|", name);
  return text;
}

// Accepts anything, and proposes the names to a completion.
CLI::Validator Such(const std::vector<std::string>& names) {
  return CLI::Validator([](std::string&) { return std::string(); }, Choice(names), "name");
}

CLI::Validator OneOf(const std::vector<std::string>& names) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        if (std::find(names.begin(), names.end(), text) != names.end()) return "";
        return Text("'", text, "', expected ", Alternatives(names));
      },
      Choice(names), "name");
}

constexpr uint64_t kMost = 1000000000;

// Accepts "auto" or such an integer.
CLI::Validator AutoOrInteger(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        return text == "auto" ? "" : Integer(least, most)(text);
      },
      "", "integer");
}

CLI::Validator DeviceWish() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const bool numbered = text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 9 &&
                              text.find_first_not_of("0123456789", 5) == std::string::npos;
        if (numbered || text == "auto" || text == "cpu" || text == "cuda") return "";
        return Text("'", text, "', expected auto, cpu, cuda or cuda:N");
      },
      "auto|cpu|cuda", "name");
}

void AddBatchOptions(CLI::App& app, TrainOptions& o) {
  app.add_option("--epochs", o.epochs, "Passes over the training data [8]")
      ->check(Integer(1, 1000000))
      ->type_name("N");
  auto* batch = app.add_option_function<std::string>(
      "--batch-size",
      [&o](const std::string& text) {
        o.largest_batch = text == "auto";
        if (!o.largest_batch) o.batch_size = std::stoull(text);
      },
      "Examples per rank and optimizer step; auto: on a GPU, the largest power of two that fits "
      "into it [1024]");
  batch->check(AutoOrInteger(1, kMost))->type_name("N|auto");
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
  app.add_option("--learning-rate", o.learning_rate, "Of the optimizer [0.001]")
      ->check(Number(0, Bound::kExcluded, 1000))
      ->type_name("X");
  app.add_option("--optimizer", o.optimizer, Alternatives(OptimizerNames()) + " [adam]")
      ->check(OneOf(OptimizerNames()))
      ->type_name("NAME");
  app.add_option("--schedule", o.schedule, Alternatives(ScheduleNames()) + " [cooldown]")
      ->check(OneOf(ScheduleNames()))
      ->type_name("NAME");
  app.add_option(
         "--warmup-steps", o.warmup_steps,
         "Steps over which the learning rate rises to its value, in front of the schedule [0]")
      ->check(Integer(0, kMost))
      ->type_name("N");
  app.add_option(
         "--warmup-epochs", o.warmup_epochs,
         "First epochs, in which the learning rate grows to that of all ranks' batches together: "
         "the number of ranks times --learning-rate [0]")
      ->check(Integer(0, 1000000))
      ->type_name("N");
  app.add_option(
         "--cooldown", o.cooldown,
         "Last part of the training, over which the learning rate falls to 0 in a straight line "
         "[0.25]")
      ->check(Number(0, Bound::kIncluded, 1))
      ->type_name("X");
  const auto add_setting = [&](const char* name, std::optional<double>& value, const char* text,
                               double most) {
    app.add_option(name, value, text)->check(Number(0, Bound::kIncluded, most))->type_name("X");
  };
  OptimizerSettings& s = o.settings;
  add_setting("--momentum", s.momentum, "Of sgd, lars and muon [0, 0.9, 0.95]", 1);
  auto* nesterov = app.add_flag_callback(
      "--nesterov", [&s] { s.nesterov = true; }, "Nesterov's momentum, of sgd, lars and muon");
  app.add_flag_callback(
         "--no-nesterov", [&s] { s.nesterov = false; },
         "No Nesterov momentum; muon has Nesterov momentum by default")
      ->excludes(nesterov);
  add_setting("--weight-decay", s.weight_decay, "Of all but adam [of each optimizer's own]", 1000);
  add_setting("--beta1", s.beta1, "Of adam, adamw, lamb and muon [0.9]", 1);
  add_setting("--beta2", s.beta2, "Of adam, adamw, lamb and muon [0.999; of muon 0.95]", 1);
  add_setting("--epsilon", s.epsilon, "Of adam, adamw, lamb and muon [of each one's own]", 1);
  app.add_option("--seed", o.seed, "Of initial weights, order of examples and dropout [1]")
      ->check(Integer(0, UINT64_MAX))
      ->type_name("N");
}

void AddLoopOptions(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--loop", o.loop,
         "fit: Trainer::Fit with callbacks; custom: a loop over the same parts, with the same "
         "result [fit]")
      ->check(OneOf({"fit", "custom"}))
      ->type_name("NAME");
  app.add_option(
         "--early-stopping", o.early_stopping,
         "Stop when the test loss has not improved for N epochs, and go back to the best weights")
      ->check(Integer(1, 1000000))
      ->type_name("N");
  app.add_option("--checkpoint-dir", o.checkpoint_dir, "Save checkpoints in this folder")
      ->type_name("DIR");
  app.add_option(
         "--checkpoint-every", o.checkpoint_every,
         "Save one every N steps, besides that at each epoch's end")
      ->check(Integer(1, kMost))
      ->type_name("N");
  app.add_option("--keep-checkpoints", o.keep_checkpoints, "Keep the newest N; 0: all [3]")
      ->check(Integer(0, kMost))
      ->type_name("N");
  app.add_flag(
      "--resume", o.resume, "Go on where the newest checkpoint in --checkpoint-dir was made");
}

void AddNetworkOptions(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--network", o.network,
         Alternatives(TrainableNetworks()) +
             ": what is trained, for as many classes as the data has. The other defaults are the "
             "same for all networks [C]")
      ->check(OneOf(TrainableNetworks()))
      ->type_name("NAME");
}

void AddStrategyOptions(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--strategy", o.strategy,
         Alternatives(StrategyNames()) +
             ": how training is spread over the ranks; one_device, mirrored and central_storage "
             "take devices (mirrored:cpu,cpu); parameter_server is for jobs of dtrun --ps "
             "[multi_worker_mirrored]")
      ->check(Such(StrategyNames()))
      ->type_name("NAME");
}

void AddFileOptions(CLI::App& app, TrainOptions& o) {
  app.add_option("--json", o.json, "Write the result to this file")->type_name("FILE");
  app.add_option(
         "--report", o.report, "Write a page about the run to this file, to be read in a browser")
      ->type_name("FILE");
  app.add_option("--save", o.save, "Save the trained model in this folder, for predict")
      ->type_name("DIR");
  app.add_option("--export-onnx", o.export_onnx, "Write the trained model as ONNX to this file")
      ->type_name("FILE");
  app.add_option("--tensorboard", o.tensorboard, "Write what TensorBoard shows into this folder")
      ->type_name("DIR");
  app.add_flag("--log-steps", o.log_steps, "With the loss of every step in the --json file");
  app.add_option(
         "--example-log", o.example_log,
         "Write the numbers of the examples of every step into this folder")
      ->type_name("DIR");
}

void AddSurroundings(CLI::App& app, TrainOptions& o) {
  app.add_option(
         "--data-dir", o.data_dir,
         Text("Folder of an IDX data set, gzipped or not [", kFashionMnistDir, "]"))
      ->type_name("DIR");
  app.add_option(
         "--dtype", o.dtype,
         "f32, bf16 or, on a GPU, f16: what layers compute in; parameters stay f32. Where the CPU "
         "has no AVX512_BF16, all is f32 [f32]")
      ->check(OneOf({"f32", "bf16", "f16"}))
      ->type_name("NAME");
  app.add_option(
         "--device", o.device,
         "cpu, cuda (one GPU per rank of a host), cuda:N, or auto: cuda where every rank has a GPU "
         "that can train this, which several ranks of a host share if they have to; else cpu "
         "[auto]")
      ->check(DeviceWish())
      ->type_name("NAME");
  app.add_flag(
      "--share-gpus", o.share_gpus,
      "With --device cuda or cuda:N: several ranks of a host may use one GPU");
  app.add_flag(
      "!--no-tf32", o.tf32,
      "On a GPU, in f32: products of f32 factors, not of factors rounded to TF32's 10 bits");
  app.add_flag(
      "--first-algorithms,!--fastest-algorithms", o.first_algorithms,
      "On a GPU: use the first algorithms that libraries propose, so that another run computes the "
      "same bits, or time them and use the fastest [first]");
  app.add_option(
         "--prefetch", o.prefetch,
         "Batches that a thread of its own gets ready before they are needed; 0: none [2]")
      ->check(Integer(0, 1000))
      ->type_name("N");
  app.add_option(
         "--threads", o.threads,
         "Compute threads per rank [the CPUs that are its own; 1 with --deterministic]")
      ->check(Integer(1, 4096))
      ->type_name("N");
  app.add_option(
         "--deterministic", o.deterministic,
         "Sum gradients in a tree over N parts of each global batch (N: a power of two), so that "
         "1, 2, 4, ... N ranks with equal --global-batch-size and --threads get the same bits. "
         "Without a value: 8 parts [off]")
      ->expected(0, 1)
      ->default_str("8")
      ->check(Integer(1, 65536))
      ->type_name("N");
  app.add_flag(
      "--adasum", o.adasum,
      "Each rank steps by itself, with the mean of its own batch, and the steps are combined by "
      "adaptive summation; on 1, 2, 4, 8, ... ranks");
  app.add_option(
         "--verbose", o.verbose,
         "0: the result alone; 1: a progress line per epoch where there is a terminal; 2: one line "
         "per epoch [1]")
      ->check(Integer(0, 2))
      ->type_name("0|1|2");
  app.add_flag(
      "!--reduce-after-backward", o.overlap,
      "Do not reduce gradients while the backward pass runs: shows what that is worth");
}

std::string ErrorBetweenOptions(const TrainOptions& o, const CLI::App& app) {
  if (app.count("--cooldown") > 0 && o.schedule != "cooldown")
    return Text("--cooldown: given with --schedule ", o.schedule, ", expected --schedule cooldown");
  const bool has_folder = app.count("--checkpoint-dir") > 0;
  if (has_folder && o.checkpoint_dir.empty()) return "--checkpoint-dir: '', expected a folder";
  for (const char* name : {"--checkpoint-every", "--keep-checkpoints", "--resume"}) {
    if (app.count(name) > 0 && !has_folder)
      return Text(name, ": expected with --checkpoint-dir DIR");
  }
  if (app.count("--report") > 0 && o.report.empty()) return "--report: '', expected a file name";
  if (app.count("--save") > 0 && o.save.empty()) return "--save: '', expected a folder";
  if (app.count("--export-onnx") > 0 && o.export_onnx.empty())
    return "--export-onnx: '', expected a file name";
  if (app.count("--tensorboard") > 0 && o.tensorboard.empty())
    return "--tensorboard: '', expected a folder";
  if (app.count("--example-log") > 0 && o.example_log.empty())
    return "--example-log: '', expected a folder";
  for (const char* name :
       {"--checkpoint-dir", "--early-stopping", "--tensorboard", "--example-log"}) {
    if (app.count(name) > 0 && o.loop == "custom")
      return Text(name, ": given with --loop custom, expected --loop fit");
  }
  if (o.adasum && o.deterministic > 0)
    return "--deterministic: given with --adasum, which sums no gradients";
  if (o.log_steps && o.json.empty()) return "--log-steps: expected with --json FILE";
  if (app.count("--json") > 0 && o.json.empty()) return "--json: '', expected a file name";
  return "";
}

}  // namespace

std::vector<std::string> TrainableNetworks() { return {"A", "B", "C", "D", "mlp"}; }

ParsedOptions ParseOptions(int argc, const char* const* argv, const TrainOptions& defaults) {
  ParsedOptions parsed;
  parsed.options = defaults;
  parsed.options.command = CommandText(argc, argv);
  CLI::App app(
      "Trains a convolutional network on Fashion-MNIST, alone or as the ranks of a dtrun job.\n"
      "Exit codes: 0 success, 2 usage, 65 the loss is not a number, 66 data or checkpoint "
      "unusable, "
      "70 not enough memory or a fault of the system, "
      "73 a result file, the saved model or a checkpoint could not be written, "
      "75 the job is going to end and the training is saved, 76 ranks disagree.",
      "cnn_fmnist");
  const auto add = [&](const char* group, void (*options)(CLI::App&, TrainOptions&)) {
    app.option_defaults()->group(group);
    options(app, parsed.options);
  };
  add("Network and batches", [](CLI::App& to, TrainOptions& o) {
    AddNetworkOptions(to, o);
    AddStrategyOptions(to, o);
    AddBatchOptions(to, o);
  });
  add("Optimizer", AddOptimizerOptions);
  add("Training loop", AddLoopOptions);
  add("Results", AddFileOptions);
  add("Data and machine", AddSurroundings);
  parsed.error = ParseCommandLine(
      app, argc, argv, parsed.help, [&] { return ErrorBetweenOptions(parsed.options, app); });
  return parsed;
}

namespace {

template <typename Value>
std::string OrDefault(const std::optional<Value>& value) {
  return value ? Text(*value) : "default";
}

std::string SettingsText(const OptimizerSettings& s) {
  return Text(
      "\n--momentum=", OrDefault(s.momentum), "\n--nesterov=", OrDefault(s.nesterov),
      "\n--weight-decay=", OrDefault(s.weight_decay), "\n--beta1=", OrDefault(s.beta1),
      "\n--beta2=", OrDefault(s.beta2), "\n--epsilon=", OrDefault(s.epsilon));
}

}  // namespace

std::string SharedSettings(const TrainOptions& o) {
  return Text(
      "--network=", o.network, "\n--epochs=", o.epochs,
      "\n--batch-size=", o.largest_batch ? "auto" : std::to_string(o.batch_size),
      "\n--global-batch-size=", o.global_batch_size, "\n--steps-per-epoch=", o.steps_per_epoch,
      "\n--max-steps=", o.max_steps, "\n--learning-rate=", o.learning_rate,
      "\n--optimizer=", o.optimizer, SettingsText(o.settings), "\n--schedule=", o.schedule,
      "\n--warmup-steps=", o.warmup_steps, "\n--cooldown=", o.cooldown,
      "\n--warmup-epochs=", o.warmup_epochs, "\n--loop=", o.loop,
      "\n--early-stopping=", o.early_stopping, "\n--checkpoint-dir=", o.checkpoint_dir,
      "\n--checkpoint-every=", o.checkpoint_every, "\n--keep-checkpoints=", o.keep_checkpoints,
      "\n--resume=", o.resume, "\n--dtype=", o.dtype, "\n--device=", o.device,
      "\n--share-gpus=", o.share_gpus, "\n--no-tf32=", !o.tf32,
      "\n--first-algorithms=", o.first_algorithms, "\n--prefetch=", o.prefetch,
      "\n--tensorboard=", o.tensorboard, "\n--seed=", o.seed, "\n--verbose=", o.verbose,
      "\n--log-steps=", o.log_steps, "\n--example-log=", o.example_log,
      "\n--deterministic=", o.deterministic, "\n--reduce-after-backward=", !o.overlap,
      "\n--adasum=", o.adasum, "\n--strategy=", o.strategy, "\n");
}

uint64_t GlobalBatchOf(const TrainOptions& options, int ranks) {
  if (options.global_batch_size > 0) return options.global_batch_size;
  return options.batch_size * static_cast<uint64_t>(ranks);
}

uint64_t StepsPerEpoch(const TrainOptions& options, uint64_t images, int ranks) {
  if (options.steps_per_epoch > 0) return options.steps_per_epoch;
  return BatchesPerEpoch(images, GlobalBatchOf(options, ranks));
}

uint64_t TotalSteps(const TrainOptions& options, uint64_t images, int ranks) {
  const uint64_t steps = StepsPerEpoch(options, images, ranks) * options.epochs;
  return options.max_steps > 0 ? std::min(steps, options.max_steps) : steps;
}

double RateAt(const TrainOptions& options, uint64_t step, uint64_t images, int ranks) {
  const uint64_t steps = TotalSteps(options, images, ranks);
  const uint64_t warmup = options.warmup_epochs * StepsPerEpoch(options, images, ranks);
  const double factor = warmup > 0 ? ranks : 1;
  ScheduleSettings settings;
  settings.learning_rate = options.learning_rate * factor;
  settings.steps = steps;
  settings.warmup_steps = options.warmup_steps;
  if (options.schedule == "cooldown") settings.fraction = options.cooldown;
  const double rate = MakeSchedule(options.schedule, settings).rate(step);
  if (step >= warmup) return rate;
  const double done = static_cast<double>(step) / static_cast<double>(warmup);
  return std::min(rate, options.learning_rate * (1 + (factor - 1) * done));
}

}  // namespace dtrun::models
