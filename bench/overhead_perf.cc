// The cost of the flight recorder and of the comparison of calls in a small collective. Times a 4
// KiB all-reduce on memory that all ranks map, with and without both, alternately in the same
// processes. Prints medians. Run it under dtrun or mpirun on one host.

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/process.h"
#include "bench/benchmark.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/engine/flight_recorder.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"

namespace {

using dtrun::Buffer;
using dtrun::ops::Communicator;
using dtrun::ops::Engine;

class MpiBootstrap : public dtrun::ops::Bootstrap {
 public:
  MpiBootstrap() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> AllGather(const std::string& bytes) override {
    const auto p = static_cast<size_t>(size_);
    const int length = static_cast<int>(bytes.size());
    std::vector<int> lengths(p), offsets(p);
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
    std::string all(static_cast<size_t>(offsets.back() + lengths.back()), '\0');
    MPI_Allgatherv(
        bytes.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR,
        MPI_COMM_WORLD);
    std::vector<std::string> result;
    for (size_t r = 0; r < p; ++r) {
      result.push_back(
          all.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(lengths[r])));
    }
    return result;
  }
  std::unique_ptr<dtrun::ops::SegmentExchange> ConnectSegmentExchange(
      dtrun::ops::Bootstrap& ranks) override {
    return dtrun::ops::ConnectSocketExchange(ranks, std::chrono::seconds(60));
  }

 private:
  int rank_ = 0, size_ = 1;
};

// One of the two sides: an engine, a communicator and mapped memory.
class Side {
 public:
  static constexpr uint64_t kBytes = 4096;

  Side(dtrun::ops::Bootstrap& bootstrap, dtrun::ops::CallChecks checks)
      : engine_(
            {.recorder = checks == dtrun::ops::CallChecks::kOn
                             ? dtrun::ops::FlightRecorder::InFile(
                                   RecordFile(bootstrap.rank()), bootstrap.rank(), "localhost")
                             : nullptr},
            clock_, [](auto, const auto&) {}),
        communicator_(dtrun::ops::CreateShmCommunicator(
            bootstrap, engine_, dtrun::ops::Members::World(bootstrap.size()), checks)),
        memory_(communicator_->Allocate(kBytes)) {}

  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() { ::unlink(RecordFile(communicator_->rank()).c_str()); }

  // Microseconds per operation, over `batch` operations.
  double Time(int batch) {
    const Buffer buffer(static_cast<float*>(memory_->data()), kBytes / sizeof(float));
    communicator_->Barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) communicator_->AllReduce(buffer, dtrun::ReduceOp::kSum);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
               .count() /
           batch;
  }

 private:
  // The record lies in shared memory, as under dtrun.
  static std::string RecordFile(int rank) {
    return "/dev/shm/dtrun_overhead_perf." + std::to_string(::getpid()) + "." +
           std::to_string(rank);
  }

  dtrun::base::SteadyClock clock_;
  Engine engine_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<dtrun::ops::Memory> memory_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Result {
  double with_us, without_us, overhead_us;
};

Result Measure(Side& with, Side& without) {
  constexpr int kBatch = 1000, kRounds = 301;
  std::vector<double> with_times, without_times, differences;
  for (int i = 0; i < kRounds; ++i) {
    with_times.push_back(with.Time(kBatch));
    without_times.push_back(without.Time(kBatch));
    differences.push_back(with_times.back() - without_times.back());
  }
  return {Median(with_times), Median(without_times), Median(differences)};
}

}  // namespace

using dtrun::bench::OptionSet;

int main(int argc, char** argv) {
  std::string json_file;
  OptionSet options("What the flight recorder and the comparison of calls cost.", "overhead_perf");
  options.Add("--json", &json_file, "write the figures to this file");
  if (const auto status = options.Parse(argc, argv)) return *status;

  MPI_Init(&argc, &argv);
  {
    MpiBootstrap bootstrap;
    Side with(bootstrap, dtrun::ops::CallChecks::kOn);
    Side without(bootstrap, dtrun::ops::CallChecks::kOff);
    const Result result = Measure(with, without);
    if (bootstrap.rank() == 0) {
      std::printf(
          "all_reduce of 4 KiB, mapped, %d ranks: %.3f us with recorder and comparison, %.3f us "
          "without; median difference %.3f us\n",
          bootstrap.size(), result.with_us, result.without_us, result.overhead_us);
      if (!json_file.empty()) {
        std::ofstream(json_file) << nlohmann::json{
            {"with_us", result.with_us},
            {"without_us", result.without_us},
            {"overhead_us", result.overhead_us}};
      }
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
