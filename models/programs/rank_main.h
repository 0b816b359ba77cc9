#ifndef DTRUN_MODELS_PROGRAMS_RANK_MAIN_H_
#define DTRUN_MODELS_PROGRAMS_RANK_MAIN_H_

#include <dtrun/context.h>
#include <dtrun/strategies.h>

#include <functional>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace dtrun::models {

/// Parses a command line. Returns what is wrong, in one line: what CLI11 refuses, else what
/// `check`, which sees the options, returns; empty when all is right. `help` becomes what --help
/// or --version prints if one of them is given. Neither prints nor exits, so that the ranks can agree on what to do
/// first.
std::string ParseCommandLine(
    CLI::App& app, int argc, const char* const* argv, std::string& help,
    const std::function<std::string()>& check = {});

/// Prints "program: problem" to stderr and returns `exit_code`.
int Complain(const std::string& program, const std::string& problem, int exit_code);

/// The life of a program that is a rank: Init, `body`, Shutdown. Returns what `body` returned or,
/// having said what went wrong, the exit code of the error that it or the runtime has thrown: an
/// AgreedError is said by rank 0 alone.
int RunAsRank(const std::string& program, const std::function<int(Context& job)>& body);

/// MakeStrategy for what a user has written on a command line. Collective. Throws AgreedError with
/// exit code kUsage for what cannot be made.
std::unique_ptr<Strategy> MakeNamedStrategy(Context& job, const std::string& spec);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_RANK_MAIN_H_
