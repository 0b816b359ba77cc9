// The engine that starts all ranks on this host, as children of dtrun_local (dtrun_local.cc),
// without MPI.

#include "base/text.h"
#include "launcher/engines/executables.h"
#include "launcher/engines/launch_engine.h"
#include "launcher/hosts/hosts.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Words = std::vector<std::string>;

class Local final : public LaunchEngine {
 public:
  std::string name() const override { return "local"; }
  std::string summary() const override { return "one host, without MPI"; }
  std::string program() const override { return "dtrun_local"; }
  bool is_own() const override { return true; }
  std::string more_words() const override { return ""; }
  bool blames_lost_ranks() const override { return false; }

  std::string Find(const std::string&) const override { return FindHelper(program()); }

  std::string Probe(const EngineCall& call) const override {
    if (call.placement.size() != 1 || !call.only_this_machine)
      return Text(
          "--launcher local starts ranks on this host alone, but the hosts are ",
          HostList(call.placement), "; --launcher mpirun reaches others");
    if (!call.mpi_args.empty())
      return "--mpi-args needs mpirun; expected no --mpi-args with --launcher local";
    return "";
  }

  Words Argv(const EngineCall& call) const override {
    Words argv = {call.file, Text(base::RankCount(call.placement)), call.wrapper};
    for (const std::string& word : MarkWords(call.program)) argv.push_back(word);
    return argv;
  }

  std::string Daemon(const EngineCall&) const override { return ""; }
  void Prepare(const EngineCall&, Variables&) const override {}
  // Open MPI would set these variables anew. Without it they would describe another job.
  void CleanEnvironment(Variables& environment) const override {
    std::erase_if(environment, [](const std::string& variable) {
      return variable.starts_with("OMPI_COMM_WORLD_") || variable.starts_with("PMIX_");
    });
  }

  EngineLine Sort(std::string_view) const override { return EngineLine::kWords; }

  EngineEnd Explain(
      int exit_code, const std::vector<base::HostSlots>&, const std::string&) const override {
    return {
        {static_cast<int>(ExitCode::kInternal),
         Text("no rank could be started (dtrun_local ended with code ", exit_code, ")")},
        " without Shutdown; that ended the job",
        "",
        {exit_code, Text("dtrun_local ended the job with code ", exit_code)}};
  }
};

}  // namespace

const LaunchEngine& LocalEngine() {
  static const Local engine;
  return engine;
}

}  // namespace dtrun::launcher
