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

/// The command line of a trainer that may have parameter servers: that of ParseOptions,
/// --max-staleness and --evaluator. With them a batch is what one worker computes one gradient
/// from.
struct ParameterOptions {
  ParsedOptions parsed;
  ParameterServerOptions servers;  ///< but for the steps
  bool has_servers() const { return parsed.options.strategy == "parameter_server"; }
};
/// What does not go with the strategy is an error of `parsed`. `strategy`: what is meant where none
/// is named.
ParameterOptions ReadParameterOptions(
    int argc, const char* const* argv, const std::string& strategy = TrainOptions().strategy);

/// Makes the optimizer that the options name, for a server's shards.
ParameterServer::MakeOptimizer OptimizerMaker(const TrainOptions& options);

/// What ParameterServerOptions::min_partition_bytes has to be on all ranks: one that cuts no
/// variable where the optimizer looks at a variable as a whole (Muon; norms, as LARS and LAMB take
/// them), so that each has one server as its owner. Throws Error kInvalidArgument for settings that
/// the optimizer does not take.
uint64_t LeastPartition(const TrainOptions& options, Sequential& model);

/// A network's parameters with their shapes, for servers and workers alike.
std::vector<NamedTensor> VariablesOf(Sequential& model);

/// An optimizer whose steps are the servers': a Replica that has it trains their variables.
class PushingOptimizer : public RateOptimizer {
 public:
  explicit PushingOptimizer(ParameterWorker& worker, std::vector<Parameter>& parameters)
      : worker_(worker), parameters_(parameters) {}

  std::vector<Parameter>& parameters() override { return parameters_; }
  std::vector<NamedBuffer> state() override { return {}; }
  void Step() override { worker_.Push(); }
  /// The servers' own, which nobody asks for here.
  double learning_rate() const override { return 0; }
  void set_learning_rate(double) override {}

 private:
  ParameterWorker& worker_;
  std::vector<Parameter>& parameters_;
};

/// How well a network does.
struct Score {
  double accuracy = 0, loss = 0;
};
Score ScoreOf(Context& job, Sequential& model, const Pipeline& images);

/// How fast gradients come, without the time before the first one.
class UpdateClock {
 public:
  void Tick();
  double updates_per_s() const;

 private:
  uint64_t ticks_ = 0;
  std::chrono::steady_clock::time_point first_, last_;
};

/// What the first server knows when all is done.
struct ParameterResult {
  int workers = 0;  ///< that the job began with
  uint64_t steps = 0;
  Score test;
  double images_per_s = 0;  ///< that all workers together trained on
  ParameterStatistics statistics;
  std::vector<uint64_t> staleness;
  std::string histogram;  ///< of it, in lines
};
ParameterResult ResultOf(const ParameterServer& server, const Score& test);
/// {"workers": 2, "steps": 938, "test_accuracy": 0.89, "test_loss": 0.3, "images_per_s": 5100,
///  "updates": 938, "repeated_steps": 0, "lost_workers": 0, "server_update_s": 0.7,
///  "server_copy_s": 0.4, "server_cpu_s": 1.2, "staleness": [40, 880, 18]}
std::string ToJson(const ParameterResult& result);
/// The same for people, in lines.
std::string ToText(const ParameterResult& result);

/// The evaluator: says the test accuracy of each new checkpoint in `folder`, until the job is done.
void ScoreCheckpoints(
    Context& job, const ParameterServerOptions& servers, const std::string& folder,
    Sequential& model, const Pipeline& test);

/// What a rank of a job with parameter servers does, be it server, worker or evaluator: trains what
/// the options name. Returns the exit code, having said as `program` what is wrong with them.
/// Throws Error as ParameterServer and ParameterWorker do.
int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_
