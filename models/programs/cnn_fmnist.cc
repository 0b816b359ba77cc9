// Trains a network on Fashion-MNIST, or another IDX data set, on any number of ranks.

#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/preemption.h>
#include <dtrun/strategy.h>
#include <omp.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "models/formats/model/saved_model.h"
#include "models/formats/onnx/onnx.h"
#include "models/message_text.h"
#include "models/programs/rank_main.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"
#include "models/report/page.h"
#include "models/train/agreement.h"
#include "models/train/report.h"

namespace dtrun::models {
namespace {

int Report(const std::string& problem, int exit_code) {
  return Complain("cnn_fmnist", problem, exit_code);
}

// Runs on rank 0 only.
int WriteResult(
    const Context& job, const Trained& trained, const RunReport& page, const Preparation& ready) {
  const TrainOptions& options = ready.options;
  Sequential& model = *ready.model;
  try {
    if (!options.json.empty()) WriteAtomically(options.json, ToJson(trained.result));
  } catch (const Error& error) {
    return Report(Text("--json: ", error.what()), kResultNotWritten);
  }
  try {
    if (!options.report.empty()) WriteRunReport(options.report, page);
  } catch (const Error& error) {
    return Report(Text("--report: ", error.what()), kResultNotWritten);
  }
  try {
    if (!options.save.empty()) SaveModel(model, options.save, MetadataOf(job, ready, trained));
  } catch (const Error& error) {
    return Report(Text("--save: ", error.what()), kResultNotWritten);
  }
  try {
    if (!options.export_onnx.empty()) ExportOnnx(model, options.export_onnx);
  } catch (const Error& error) {
    return Report(Text("--export-onnx: ", error.what()), kResultNotWritten);
  }
  return trained.not_written.empty() ? kSuccess : kResultNotWritten;
}

// The memory of a process for the time after a loss of other ranks.
struct Kept {
  KeptTraining training;
  KeptImages images;
  std::optional<PreemptionNotice> notice = std::nullopt;  // none: this process cannot save
};

int TrainAsRank(Context& job, const ParsedOptions& parsed, Kept& kept) {
  if (!parsed.help.empty()) {
    if (job.rank() == 0) std::fputs(parsed.help.c_str(), stdout);
    return kSuccess;
  }
  omp_set_num_threads(ComputeThreads(parsed.options, job));

  Preparation ready = Prepare(parsed, job, &kept.images);
  const Verdict& verdict = ready.verdict;
  const TrainOptions& options = ready.options;
  if (verdict.exit_code != kSuccess)
    return job.rank() == 0 ? Report(verdict.problem, verdict.exit_code) : verdict.exit_code;

  const std::unique_ptr<Strategy> strategy = MakeChosenStrategy(job, ready);
  if (job.rank() == 0 && options.verbose > 0 && job.losses() == 0) {
    std::fputs(Heading(job, options, ready).c_str(), stdout);
    std::fflush(stdout);
  }
  const Trained trained =
      Train(job, *strategy, options, ready, kept.training, kept.notice ? &*kept.notice : nullptr);
  const RunReport page = PageOf(job, options, ready, trained);
  return job.rank() == 0 ? WriteResult(job, trained, page, ready) : kSuccess;
}

int Main(int argc, char** argv) {
  const ParameterOptions options = ReadParameterOptions(argc, argv);
  Kept kept;
  const TrainOptions& training = options.parsed.options;
  const bool can_save = !training.checkpoint_dir.empty() && training.loop == "fit";
  if (can_save && !options.has_servers()) kept.notice.emplace();
  return RunAsRank("cnn_fmnist", [&](Context& job) {
    return options.has_servers() ? TrainWithServers(job, "cnn_fmnist", options)
                                 : TrainAsRank(job, options.parsed, kept);
  });
}

}  // namespace
}  // namespace dtrun::models

int main(int argc, char** argv) { return dtrun::models::Main(argc, argv); }
