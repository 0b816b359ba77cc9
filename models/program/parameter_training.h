#ifndef DTRUN_MODELS_PROGRAM_PARAMETER_TRAINING_H_
#define DTRUN_MODELS_PROGRAM_PARAMETER_TRAINING_H_

#include <dtrun/context.h>

#include <string>

#include "models/program/parameter_program.h"

namespace dtrun::models {

/// What a rank of a job with parameter servers does, be it server, worker or evaluator: trains what
/// the options name. Returns the exit code, having said as `program` what is wrong with them.
/// Throws Error as ParameterServer and ParameterWorker do.
int TrainWithServers(Context& job, const std::string& program, const ParameterOptions& options);

}  // namespace dtrun::models

#endif
