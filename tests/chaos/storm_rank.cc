// A rank that goes through all phases of a training job and writes the current phase to a file:
// `storm_rank FOLDER PHASE`. PHASE lasts longer, so that a fault can happen during it. The phases:
//
//   start, init, step, evaluation, save, end

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

class Phases {
 public:
  Phases(const std::string& folder, const std::string& longest)
      : file_(folder + "/" + std::getenv("RANK")), longest_(longest) {}

  // Writes "PHASE PID". The rename keeps the file complete at any time.
  void Begin(const std::string& phase) {
    phase_ = phase;
    const std::string next = file_ + ".next";
    std::ofstream(next) << phase << ' ' << getpid() << '\n';
    std::rename(next.c_str(), file_.c_str());
  }
  // The length of a phase: short, or long enough for a fault.
  useconds_t Moment() const { return phase_ == longest_ ? 400'000 : 20'000; }

 private:
  std::string file_, longest_, phase_;
};

void Step(dtrun::Communicator& world, std::vector<float>& gradient) {
  world.AllReduce(dtrun::Buffer(gradient.data(), gradient.size()));
  usleep(10'000);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[1], longest = argv[2];
  Phases phases(folder, longest);
  phases.Begin("start");
  usleep(phases.Moment());
  phases.Begin("init");
  // The last rank makes the others wait in Init.
  if (longest == "init" &&
      std::getenv("RANK") == std::to_string(std::atoi(std::getenv("WORLD_SIZE")) - 1))
    usleep(phases.Moment());
  dtrun::Context job = dtrun::Init();
  std::vector<float> gradient(300'000, 1.0f);
  phases.Begin("step");
  const int steps = longest == "step" ? 40 : 4;
  for (int step = 0; step < steps; ++step) Step(job.world(), gradient);
  phases.Begin("evaluation");
  usleep(phases.Moment());
  Step(job.world(), gradient);
  phases.Begin("save");
  if (job.rank() == 0) {
    std::ofstream file(folder + "/saved");
    for (int i = 0; i < 4; ++i) {
      file.write(reinterpret_cast<const char*>(gradient.data()), 100'000);
      usleep(phases.Moment() / 4);
    }
  }
  job.world().Barrier();
  phases.Begin("end");
  job.Shutdown();
  usleep(phases.Moment());
  std::puts(std::string(5000, '.').c_str());  // more than one page, so that a full disk refuses it
  return 0;
}
