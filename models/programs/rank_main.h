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

/// Parses a command line. Returns the problem in one line: an error of CLI11, or the result of
/// `check`, which may read the parsed options. Returns "" if there is no problem. If --help,
/// --version or --completion is given, `help` becomes its text. Does not print or exit, so that the
/// ranks can first agree on the result.
std::string ParseCommandLine(
    CLI::App& app, int argc, const char* const* argv, std::string& help,
    const std::function<std::string()>& check = {});

/// The command line as a shell reads it.
///   {"train", "--data-dir", "my data"}  ->  "train --data-dir 'my data'"
std::string CommandText(int argc, const char* const* argv);

/// Prints "program: problem" to stderr and returns `exit_code`.
int Complain(const std::string& program, const std::string& problem, int exit_code);

/// Runs a program as a rank: Init, `body`, Shutdown. Returns the result of `body`. After an error
/// of `body` or the runtime, prints the error and returns its exit code. Only rank 0 prints an
/// AgreedError, unless a worker of parameter servers has it alone.
int RunAsRank(const std::string& program, const std::function<int(Context& job)>& body);

/// MakeStrategy for a strategy from the command line. Collective. Throws AgreedError, with exit
/// code kUsage if the strategy is invalid or unavailable.
std::unique_ptr<Strategy> MakeNamedStrategy(
    Context& job, const std::string& spec, const std::optional<Device>& own = std::nullopt);

/// RunReplicas for a strategy from the command line, with the errors of MakeNamedStrategy and of
/// `body`. Collective.
void RunNamedReplicas(
    Context& job, const std::string& spec, const std::function<void(Strategy&)>& body);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_PROGRAMS_RANK_MAIN_H_
