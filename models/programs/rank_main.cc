#include "models/programs/rank_main.h"

#include <dtrun/error.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "models/train/agreement.h"

namespace dtrun::models {
namespace {

std::string OneLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

std::string ParseCommandLine(
    CLI::App& app, int argc, const char* const* argv, std::string& help,
    const std::function<std::string()>& check) {
  try {
    app.parse(argc, argv);
    return check ? check() : "";
  } catch (const CLI::CallForHelp&) {
    help = app.help();
  } catch (const CLI::ParseError& error) {
    return OneLine(error.what());
  }
  return "";
}

int Complain(const std::string& program, const std::string& problem, int exit_code) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), problem.c_str());
  return exit_code;
}

int RunAsRank(const std::string& program, const std::function<int(Context& job)>& body) {
  try {
    Context job = Init();
    int exit_code = kSuccess;
    try {
      exit_code = body(job);
    } catch (const AgreedError& error) {
      exit_code = error.exit_code();
      if (job.rank() == 0) Complain(program, error.what(), exit_code);
    }
    job.Shutdown();
    return exit_code;
  } catch (const Error& error) {
    return Complain(program, error.what(), ExitCodeOf(error.code()));
  } catch (const std::bad_alloc&) {
    return Complain(program, "not enough memory", kInternal);
  } catch (const std::exception& error) {
    return Complain(program, error.what(), kInternal);
  }
}

std::unique_ptr<Strategy> MakeNamedStrategy(Context& job, const std::string& spec) {
  try {
    return MakeStrategy(job, spec);
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnavailable;
    throw AgreedError(error.code(), refused ? int{kUsage} : ExitCodeOf(error.code()), error.what());
  }
}

}  // namespace dtrun::models
