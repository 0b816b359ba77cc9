#ifndef DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_
#define DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_

#include <dtrun/context.h>
#include <dtrun/parameter_server.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "models/data/image_dataset.h"
#include "models/layers/sequential.h"
#include "models/optim/rate_optimizer.h"
#include "models/programs/training_options.h"

namespace dtrun::models {

/// The command line of a trainer that may have parameter servers: the options of ParseOptions,
/// --max-staleness and --evaluator. With parameter servers, a batch is the input of one gradient of
/// one worker.
struct ParameterOptions {
  ParsedOptions parsed;
  ParameterServerOptions servers;  ///< without the number of steps
  bool has_servers() const { return parsed.options.strategy == "parameter_server"; }
};
/// If an option does not fit the strategy, `parsed` has the error. `strategy` is the default of
/// --strategy.
ParameterOptions ReadParameterOptions(
    int argc, const char* const* argv, const std::string& strategy = TrainOptions().strategy);

/// Returns a function that makes the optimizer of the options for a server's shards.
ParameterServer::MakeOptimizer OptimizerMaker(const TrainOptions& options);

/// Returns the value of ParameterServerOptions::min_partition_bytes for all ranks. If the optimizer
/// reads whole variables (Muon) or their norms (LARS, LAMB), the value keeps every variable on one
/// server. Throws Error kInvalidArgument for settings that the optimizer does not accept.
uint64_t LeastPartition(const TrainOptions& options, Sequential& model);

/// A network's parameters with their shapes, for servers and workers.
std::vector<NamedTensor> VariablesOf(Sequential& model);

/// An optimizer for workers: Step pushes the gradients to the servers, which make the step.
class PushingOptimizer : public RateOptimizer {
 public:
  explicit PushingOptimizer(ParameterWorker& worker, std::vector<Parameter>& parameters)
      : worker_(worker), parameters_(parameters) {}

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override { return {}; }
  void Step() override { worker_.Push(); }
  /// The servers have the learning rate. This value is not used.
  double learning_rate() const override { return 0; }
  void set_learning_rate(double) override {}

 private:
  ParameterWorker& worker_;
  std::vector<Parameter>& parameters_;
};

/// The accuracy and loss of a network on a data set.
struct Score {
  double accuracy = 0, loss = 0;
};
Score ScoreOf(Context& job, Sequential& model, const Pipeline& images);

/// Measures the rate of gradients, without the time before the first one.
class UpdateClock {
 public:
  void Tick();
  double updates_per_s() const;

 private:
  uint64_t ticks_ = 0;
  std::chrono::steady_clock::time_point first_, last_;
};

/// The results that the first server has at the end of the job.
struct ParameterResult {
  int workers = 0;  ///< at the start of the job
  uint64_t steps = 0;
  Score test;
  double images_per_s = 0;  ///< of all workers together
  ParameterStatistics statistics;
  std::vector<uint64_t> staleness;
  std::string histogram;  ///< of the staleness, in lines
};
ParameterResult ResultOf(const ParameterServer& server, const Score& test);
/// {"workers": 2, "steps": 938, "test_accuracy": 0.89, "test_loss": 0.3, "images_per_s": 5100,
///  "updates": 938, "repeated_steps": 0, "lost_workers": 0, "server_update_s": 0.7,
///  "server_copy_s": 0.4, "server_cpu_s": 1.2, "staleness": [40, 880, 18]}
std::string ToJson(const ParameterResult& result);
/// The same as lines of text.
std::string ToText(const ParameterResult& result);

/// The evaluator: prints the test accuracy of each new checkpoint in `folder`, until the job is
/// done.
void ScoreCheckpoints(
    Context& job, const ParameterServerOptions& servers, const std::string& folder,
    Sequential& model, const Pipeline& test);

/// The work of a rank in a job with parameter servers: as server, worker or evaluator, with the
/// training of the options. Returns the exit code. If the options are wrong, rank 0 prints the
/// problem with the name `program`. Throws the errors of ParameterServer and ParameterWorker.
int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_
