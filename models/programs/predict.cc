// Loads a saved model and predicts the images of a data set. The ranks share the images: each rank
// predicts a contiguous range, and rank 0 writes the results of all ranks.

#include <dtrun/context.h>
#include <dtrun/dataset.h>
#include <dtrun/error.h>
#include <dtrun/metrics.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/data/dataset.h"
#include "models/formats/model/saved_model.h"
#include "models/message_text.h"
#include "models/programs/predictions.h"
#include "models/programs/rank_main.h"
#include "models/train/agreement.h"
#include "models/train/replica.h"
#include "models/train/report.h"

namespace dtrun::models {

/// The command line of predict, with its defaults.
struct PredictOptions {
  std::string model;
  std::string data_dir = kFashionMnistDir;
  std::string split = "test";  ///< or "train"
  int threads = 0;             ///< 0: this rank's CPUs
  std::string output, json;    ///< "": no file
};

struct ParsedPredictOptions {
  PredictOptions options;
  std::string help;   ///< text of --help or --version, if given; else empty
  std::string error;  ///< one line; empty if the command line is valid
};

/// Does not print or exit, so that the ranks can first agree on the result.
ParsedPredictOptions ParsePredictOptions(int argc, const char* const* argv);

namespace {

void AddOptions(CLI::App& app, PredictOptions& o) {
  app.add_option("MODEL", o.model, "Folder of a saved model")->required();
  app.add_option(
         "--data-dir", o.data_dir,
         Text("Folder of an IDX data set, gzipped or not [", kFashionMnistDir, "]"))
      ->type_name("DIR");
  app.add_option("--split", o.split, "Images to predict: test or train [test]")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            if (text == "test" || text == "train") return "";
            return Text("'", text, "', expected test or train");
          },
          "", "split"))
      ->type_name("NAME");
  app.add_option(
         "--output", o.output,
         "Write the prediction and the probability of each class, a line of CSV per image in the "
         "order of the data, to this file")
      ->type_name("FILE");
  app.add_option("--json", o.json, "Write the result to this file")->type_name("FILE");
  app.add_option("--threads", o.threads, "Compute threads per rank [the CPUs that are its own]")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
}

}  // namespace

ParsedPredictOptions ParsePredictOptions(int argc, const char* const* argv) {
  ParsedPredictOptions parsed;
  CLI::App app(
      "Loads a saved model and says how many images of a data set it classifies rightly, alone or "
      "as the ranks of a dtrun job, which share the images.\n"
      "Exit codes: 0 success, 2 usage, 66 model or data unusable, 73 a file could not be written, "
      "76 ranks disagree.",
      "predict");
  AddOptions(app, parsed.options);
  parsed.error = ParseCommandLine(app, argc, argv, parsed.help);
  return parsed;
}

namespace {

// The inputs of a rank's prediction. The verdict has the reason if they are missing.
struct Preparation {
  Verdict verdict;
  Dataset data;
  std::unique_ptr<Sequential> model;

  const Images& images(const PredictOptions& options) const {
    return options.split == "train" ? data.train : data.test;
  }
};

std::string WhyUnfit(const PredictOptions& options, const Preparation& ready) {
  const Images& images = ready.images(options);
  const Shape shape{images.height, images.width, 1};
  const Shape& wanted = ready.model->input_shape();
  const bool same_when_flat = wanted.pixels() == 1 && wanted.count() == shape.count();
  if (shape != wanted && !same_when_flat) {
    return Text(
        options.data_dir, ": images of ", shape.height, "x", shape.width, "x", shape.channels,
        ", expected ", wanted.height, "x", wanted.width, "x", wanted.channels, " as the model in ",
        options.model, " wants them");
  }
  const int largest = *std::max_element(images.labels.begin(), images.labels.end());
  if (static_cast<size_t>(largest) >= ready.model->classes()) {
    return Text(
        options.data_dir, ": a label ", largest, ", expected labels below the ",
        ready.model->classes(), " outputs of the model in ", options.model);
  }
  return "";
}

std::string WhyNoResults(const PredictOptions& options, const Context& job) {
  if (job.rank() != 0) return "";  // rank 0 writes the files
  const std::pair<const char*, const std::string&> files[] = {
      {"--output", options.output}, {"--json", options.json}};
  for (const auto& [name, path] : files) {
    const std::string reason = path.empty() ? "" : WhyNotWritable(path);
    if (!reason.empty()) return Text(name, ": ", reason);
  }
  return "";
}

// The model and the labels must be the same on all ranks, because the ranks combine their results.
std::string SettingsOf(const PredictOptions& options, const Preparation& ready) {
  const Images& images = ready.images(options);
  return Text(
      "--split=", options.split, "\nmodel parameters=", ToHex(DigestOf(*ready.model)),
      "\nlabels=", ToHex(Digest(images.labels.data(), images.labels.size())), "\n");
}

Verdict PrepareToPredict(const PredictOptions& options, const Context& job, Preparation& ready) {
  try {
    ready.model = LoadModel(options.model);
    ready.data = LoadDataset(options.data_dir);
  } catch (const Error& error) {
    return {kDataUnusable, error.what()};
  }
  const std::string unfit = WhyUnfit(options, ready);
  if (!unfit.empty()) return {kDataUnusable, unfit};
  const std::string not_writable = WhyNoResults(options, job);
  if (!not_writable.empty()) return {kResultNotWritten, not_writable};
  return {kSuccess, "", SettingsOf(options, ready)};
}

int Report(const std::string& problem, int exit_code) {
  return Complain("predict", problem, exit_code);
}

std::string ToJson(const PredictOptions& options, const Predictions& all, int ranks) {
  const nlohmann::ordered_json root = {
      {"ranks", ranks},
      {"split", options.split},
      {"images", all.tally.examples},
      {"accuracy", all.tally.accuracy()},
      {"loss", all.tally.mean_loss()}};
  return root.dump(1) + "\n";
}

int WriteResults(const PredictOptions& options, const Predictions& all, size_t classes, int ranks) {
  try {
    if (!options.output.empty()) WriteAtomically(options.output, ToCsv(all.probabilities, classes));
    if (!options.json.empty()) WriteAtomically(options.json, ToJson(options, all, ranks));
  } catch (const Error& error) {
    return Report(error.what(), kResultNotWritten);
  }
  return kSuccess;
}

void PrintResult(const PredictOptions& options, const Preparation& ready, const Tally& tally) {
  std::printf(
      "Model       %s: %s: %zu parameters\n%-12saccuracy %.4f, loss %.4f on %llu images of %s\n",
      options.model.c_str(), ready.model->description().c_str(), ready.model->parameter_count(),
      options.split == "train" ? "Training" : "Test", tally.accuracy(), tally.mean_loss(),
      static_cast<unsigned long long>(tally.examples), options.data_dir.c_str());
}

int PredictAsRank(Context& job, const ParsedPredictOptions& parsed) {
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  const PredictOptions& options = parsed.options;
  omp_set_num_threads(options.threads > 0 ? options.threads : job.threads());
  Preparation ready;
  ready.verdict = parsed.error.empty() ? PrepareToPredict(options, job, ready)
                                       : Verdict{kUsage, parsed.error + " (see --help)"};
  const Verdict verdict = AgreeOn(ready.verdict, job);
  if (verdict.exit_code != kSuccess)
    return job.rank() == 0 ? Report(verdict.problem, verdict.exit_code) : verdict.exit_code;

  const Images& images = ready.images(options);
  const Range mine = PartOf({0, images.count}, job.rank(), job.size());
  const Predictions all = GatherPredictions(job.world(), Predict(*ready.model, images, mine));
  if (job.rank() != 0) return kSuccess;
  PrintResult(options, ready, all.tally);
  return WriteResults(options, all, ready.model->classes(), job.size());
}

int Main(int argc, char** argv) {
  const ParsedPredictOptions parsed = ParsePredictOptions(argc, argv);
  return RunAsRank("predict", [&](Context& job) { return PredictAsRank(job, parsed); });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
