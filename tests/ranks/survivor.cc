// A rank that all-reduces until ranks are lost, goes on with those that are left, and ends. Prints
// its events, with the time since the start of the machine in seconds:
//   123.45 pid 678
//   123.45 works
//   130.12 told 3: gave up: collective #12, ...
//   130.12 about rank 3 on h2
//   130.61 goes on: rank 0 of 3, sum 6
//   131.00 done
// argv[1] "during": reduces 64 MiB without a pause. "between": reduces 8 bytes every 0.5 s.

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/types.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace programs::survivor {

void Print(const std::string& text) {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  std::printf(
      "%.2f %s\n", static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec),
      text.c_str());
  std::fflush(stdout);
}

class Reduction {
 public:
  explicit Reduction(bool large) : large_(large), values_(large ? 16 << 20 : 2) {}

  float Run(dtrun::Communicator& ranks, int own) {
    for (float& value : values_) value = static_cast<float>(own + 1);
    ranks.AllReduce(dtrun::Buffer(values_.data(), values_.size()));
    if (!large_) ::usleep(500'000);
    return values_.back();
  }

 private:
  bool large_;
  std::vector<float> values_;
};

int Main(int argc, char** argv) {
  dtrun::Context job = dtrun::Init();
  const bool large = argc > 1 && argv[1] == std::string("during");
  Reduction reduction(large);
  Print("pid " + std::to_string(::getpid()));
  try {
    for (int step = 0;; ++step) {
      reduction.Run(job.world(), job.rank());
      if (step == 2) Print("works");
    }
  } catch (const dtrun::Error& error) {
    Print("told " + std::to_string(static_cast<int>(error.code())) + ": " + error.what());
    for (const int rank : error.ranks()) {
      const std::string host = job.hosts().at(static_cast<size_t>(job.host_of(rank).value())).name;
      Print("about rank " + std::to_string(rank) + " on " + host);
    }
  }
  try {
    dtrun::Communicator left = job.world().Reform();
    float sum = static_cast<float>(job.rank() + 1);
    left.AllReduce(dtrun::Buffer(&sum, 1));
    Print(
        "goes on: rank " + std::to_string(left.rank()) + " of " + std::to_string(left.size()) +
        ", sum " + std::to_string(static_cast<int>(sum)) + ", " + left.backend());
    for (int step = 0; step < 4; ++step) reduction.Run(left, job.rank());
    left.Barrier();
    Print("done");
    ::sleep(2);  // a rank that was stopped hears of it
  } catch (const dtrun::Error& error) {
    Print("ends: " + std::string(error.what()));
    return 1;
  }
  job.Shutdown();
  return 0;
}

}  // namespace programs::survivor
