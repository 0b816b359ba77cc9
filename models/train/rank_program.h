#ifndef DTRUN_MODELS_TRAIN_RANK_PROGRAM_H_
#define DTRUN_MODELS_TRAIN_RANK_PROGRAM_H_

#include <dtrun/context.h>

#include <functional>
#include <string>

namespace dtrun::models {

/// Prints "program: problem" to stderr and returns `exit_code`.
int Complain(const std::string& program, const std::string& problem, int exit_code);

/// The life of a program that is a rank: Init, `body`, Shutdown. Returns what `body` returned or,
/// having said what went wrong, the exit code of the error that it or the runtime has thrown: an
/// AgreedError is said by rank 0 alone.
int RunAsRank(const std::string& program, const std::function<int(Context& job)>& body);

}  // namespace dtrun::models

#endif
