#ifndef DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_
#define DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_

#include <dtrun/context.h>
#include <dtrun/parameter_server_strategy.h>

#include <string>

#include "models/data/image_dataset.h"
#include "models/programs/training_options.h"

namespace dtrun::models {

/// The command line of a trainer that may have parameter servers: the options of ParseOptions,
/// --max-staleness and --evaluator. With parameter servers, a batch is the input of one gradient of
/// one worker.
struct ParameterOptions {
  ParsedOptions parsed;
  ParameterServerOptions servers;  ///< without the number of steps
  bool has_servers() const {
    const std::string& strategy = parsed.options.strategy;
    return strategy.substr(0, strategy.find(':')) == "parameter_server";
  }
};
/// If an option does not fit the strategy, `parsed` has the error.
ParameterOptions ReadParameterOptions(int argc, const char* const* argv);

/// The work of a rank in a job with parameter servers: as server, worker or evaluator, with the
/// training of the options. Returns the exit code. If the options are wrong, rank 0 prints the
/// problem with the name `program`. Throws the errors of ParameterServer and ParameterWorker.
int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_PARAMETER_PROGRAM_H_
