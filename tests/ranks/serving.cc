// serving STEPS [CASE] [FOLDER]: trains "w" (300, 2) and "b" (3) with parameter servers. Every
// gradient is 1/1024, and the optimizer counts the updates of each element. The cases:
//   worker      the last worker kills itself in its 3rd step. The others wait for that, by a file
//   in
//               FOLDER
//   wrapper     the last worker kills its parent process instead
//   workers     every worker kills itself in its 3rd step
//   gone        server 0 kills its parent process in its 5th update
//   absent      the last worker exits with 0 before it connects to a server
//   wait        every worker sleeps for a millisecond in each step
//   server      server 0 kills itself in its 5th update
//   fail        every worker exits with 9 before it connects to a server
//   evaluator   the last rank reads until the job is done
//   other       the last worker has a variable of another shape
// The first server prints its first step, the first value and the update count of w, the number of
// updates and lost workers, and the histogram of staleness.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/parameter_server.h>
#include <dtrun/sliceable_optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace programs::serving {

using dtrun::Buffer;
using dtrun::NamedTensor;

// value -= gradient, with a count of updates for each element.
class Counting : public dtrun::SliceableOptimizer {
 public:
  // Kills process `dies` in the 5th update, unless `dies` is 0.
  Counting(std::vector<dtrun::Parameter>& parameters, pid_t dies)
      : parameters_(parameters), dies_(dies) {}
  std::vector<dtrun::Parameter>& parameters() override { return parameters_; }
  std::vector<dtrun::StateSlot> slots() const override { return {{"count"}}; }
  std::vector<dtrun::NamedBuffer> scalars() override { return {{"steps", Buffer(&steps_, 1)}}; }
  void BeginStep() override {
    ++steps_;
    if (++updates_ == 5 && dies_ > 0) kill(dies_, SIGKILL);
  }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    auto* value = static_cast<float*>(slice.value);
    auto* counts = static_cast<float*>(slice.slots[0]);
    for (uint64_t i = 0; i < slice.count; ++i) {
      value[i] -= static_cast<const float*>(slice.gradient)[i];
      counts[i] += 1;
    }
  }

 private:
  std::vector<dtrun::Parameter>& parameters_;
  pid_t dies_;
  uint64_t steps_ = 0;
  int updates_ = 0;  // of this process
};

struct Program {
  std::string what, folder;
  std::vector<float> w = std::vector<float>(600, 1.0f), b = std::vector<float>(3, 1.0f);
  std::vector<NamedTensor> variables = {
      {"w", Buffer(w.data(), 600), {300, 2}}, {"b", Buffer(b.data(), 3), {3}}};
  dtrun::ParameterServerOptions options;

  void Serve(dtrun::Context& job) {
    dtrun::ParameterCheckpoints checkpoints;
    if (!LosesLast()) checkpoints.folder = folder;
    checkpoints.every_steps = 8;
    const bool first = job.rank() == 0;
    std::vector<dtrun::Parameter> parameters = Parameters();
    Counting counting(
        parameters, first && what == "server" ? getpid()
                    : first && what == "gone" ? getppid()
                                              : 0);
    dtrun::ParameterServer server(job, variables, counting, options, checkpoints);
    server.Serve();
    if (job.rank() > 0) return;
    const dtrun::ParameterStatistics statistics = server.statistics();
    const float count = *static_cast<const float*>(server.state()[0].buffer.data);
    std::printf(
        "from %d: w0 %g, count %g, updates %d, lost %d\n", static_cast<int>(server.first_step()),
        w[0], count, static_cast<int>(statistics.updates),
        static_cast<int>(statistics.lost_workers));
    std::printf("%s", server.StalenessHistogram().c_str());
  }

  std::vector<dtrun::Parameter> Parameters() {
    std::vector<dtrun::Parameter> parameters(2);
    for (size_t i = 0; i < 2; ++i) {
      parameters[i].name = variables[i].name;
      parameters[i].value = variables[i].buffer;
    }
    return parameters;
  }

  bool LosesLast() const { return what == "worker" || what == "wrapper"; }

  // In the 3rd step of a worker: the last one is killed, the others wait for that. The lost step
  // has to be handed out again, so the job cannot end before the loss is seen.
  void LoseLast(bool last) const {
    const std::string dead = folder + "/dead";
    while (!last && access(dead.c_str(), F_OK) != 0) usleep(1000);
    if (!last) return;
    std::fclose(std::fopen(dead.c_str(), "w"));
    kill(what == "worker" ? getpid() : getppid(), SIGKILL);
    pause();
  }

  int Work(dtrun::Context& job) {
    if (what == "fail") {
      std::fprintf(stderr, "no data\n");
      return 9;
    }
    const bool last = job.rank() == job.size() - 1;
    if (what == "absent" && last) return 0;
    if (what == "other" && last) variables[1].shape = {1, 3};
    std::vector<dtrun::Parameter> parameters = Parameters();
    dtrun::ParameterWorker worker(job, variables, parameters, options);
    for (int done = 0; worker.NextStep(); ++done) {
      worker.Pull();
      if (done == 2 && what == "workers") raise(SIGKILL);
      if (done == 2 && LosesLast()) LoseLast(last);
      if (what == "wait") usleep(1000);
      for (dtrun::Parameter& parameter : parameters)
        for (uint64_t k = 0; k < parameter.gradient.count; ++k)
          static_cast<float*>(parameter.gradient.data)[k] = 1.0f / 1024;
      worker.Push();
    }
    return 0;
  }

  void Read(dtrun::Context& job) {
    dtrun::ParameterReader reader(job, variables, options);
    while (!reader.progress().finished) reader.Pull();
    reader.Pull();
    std::printf("evaluator: w0 %g\n", w[0]);
  }

  int Run() {
    dtrun::Context job = dtrun::Init();
    options.partitioner = dtrun::Partitioner::MinSize(1024);  // "w" has 2400
    options.evaluator = what == "evaluator";
    int code = 0;
    switch (dtrun::RoleOf(job, options)) {
      case dtrun::ParameterRole::kServer: Serve(job); break;
      case dtrun::ParameterRole::kWorker: code = Work(job); break;
      case dtrun::ParameterRole::kEvaluator: Read(job); break;
    }
    job.Shutdown();
    return code;
  }
};

int Main(int argc, char** argv) {
  try {
    Program program;
    program.options.steps = static_cast<uint64_t>(std::atoi(argv[1]));
    program.what = argc > 2 ? argv[2] : "";
    program.folder = argc > 3 ? argv[3] : "";
    return program.Run();
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "serving: %s\n", error.what());
    return 10 + static_cast<int>(error.code());
  }
}

}  // namespace programs::serving
