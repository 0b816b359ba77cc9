// The time of one collective beside the same call of raw MPI, in the same process and run, in turn:
// dtrun, MPI, dtrun, MPI. Prints the columns of nccl-tests on rank 0. Run it under dtrun or mpirun.

#include <dtrun/dtrun.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cpu_watch.h"

namespace {

using dtrun::Buffer;
using nlohmann::json;

struct Settings {
  std::string op = "all_reduce";
  std::string memory = "both";
  std::vector<uint64_t> sizes = {4, 4096, 65536, 1048576, 67108864};
  std::string json_file;
  int least_rounds = 15;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One collective on buffers of its own. `bytes` is the largest buffer of one rank.
class Case {
 public:
  Case(dtrun::Communicator& comm, const std::string& op, uint64_t bytes, bool mapped)
      : comm_(comm), op_(op), parts_(op == "all_gather" ? static_cast<uint64_t>(comm.size()) : 1) {
    count_ = std::max<uint64_t>(bytes / sizeof(float) / parts_, 1);
    data_ = Take(count_ * sizeof(float), mapped);
    mpi_data_ = Take(count_ * sizeof(float), false);
    if (parts_ > 1) output_ = Take(count_ * parts_ * sizeof(float), mapped);
    if (parts_ > 1) mpi_output_ = Take(count_ * parts_ * sizeof(float), false);
  }

  uint64_t bytes() const { return count_ * parts_ * sizeof(float); }
  uint64_t count() const { return count_; }

  void Ours() {
    if (op_ == "all_reduce") comm_.AllReduce(Buffer(data_, count_));
    if (op_ == "broadcast") comm_.Broadcast(Buffer(data_, count_), 0);
    if (op_ == "all_gather")
      comm_.AllGather(Buffer(data_, count_), Buffer(output_, count_ * parts_));
  }

  void Mpi() {
    const int n = static_cast<int>(count_);
    if (op_ == "all_reduce")
      MPI_Allreduce(MPI_IN_PLACE, mpi_data_, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (op_ == "broadcast") MPI_Bcast(mpi_data_, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    if (op_ == "all_gather")
      MPI_Allgather(mpi_data_, n, MPI_FLOAT, mpi_output_, n, MPI_FLOAT, MPI_COMM_WORLD);
  }

  // Elements that differ from what they have to be, over all ranks.
  uint64_t Wrong() {
    const auto value = [](int rank, uint64_t i) {
      return static_cast<float>((i + static_cast<uint64_t>(rank)) % 16);
    };
    for (uint64_t i = 0; i < count_; ++i) data_[i] = value(comm_.rank(), i);
    Ours();
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count_ * parts_; ++i) {
      float expected = 0;
      if (op_ == "all_reduce") {
        for (int r = 0; r < comm_.size(); ++r) expected += value(r, i);
      } else {
        expected = value(static_cast<int>(i / count_), i % count_);
      }
      wrong += (parts_ > 1 ? output_ : data_)[i] != expected;
    }
    comm_.AllReduce(Buffer(&wrong, 1));
    // Sums of zeros stay zeros: no benchmark of denormals or infinities.
    std::memset(data_, 0, count_ * sizeof(float));
    return wrong;
  }

 private:
  float* Take(uint64_t bytes, bool mapped) {
    if (mapped) {
      mapped_.push_back(comm_.Allocate(bytes));
      std::memset(mapped_.back().data(), 0, bytes);
      return static_cast<float*>(mapped_.back().data());
    }
    private_.emplace_back(bytes / sizeof(float) + 16);
    // On a cache line, as any allocator of tensors does it.
    auto address = reinterpret_cast<uintptr_t>(private_.back().data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);
  }

  dtrun::Communicator& comm_;
  std::string op_;
  uint64_t parts_, count_;
  std::vector<dtrun::Memory> mapped_;
  std::vector<std::vector<float>> private_;
  float *data_ = nullptr, *mpi_data_ = nullptr, *output_ = nullptr, *mpi_output_ = nullptr;
};

struct Times {
  double ours_us, mpi_us;
};

// Rounds of one timed batch of each side in turn; a batch is long enough for the clock. The time of
// a round is the slowest rank's, the result the median over the rounds.
Times Measure(dtrun::Communicator& comm, Case& measured, int least_rounds) {
  const auto timed = [&](const std::function<void()>& call, int batch) {
    comm.Barrier();
    const double start = Now();
    for (int i = 0; i < batch; ++i) call();
    double seconds = (Now() - start) / batch;
    comm.AllReduce(Buffer(&seconds, 1), dtrun::ReduceOp::kMax);
    return seconds * 1e6;
  };
  const auto ours = [&] { measured.Ours(); };
  const auto mpi = [&] { measured.Mpi(); };
  for (int i = 0; i < 3; ++i) timed(ours, 1), timed(mpi, 1);
  const double once = std::max(timed(ours, 3), timed(mpi, 3));
  const int batch = static_cast<int>(std::clamp(2000 / once, 1.0, 1000.0));
  const int rounds =
      static_cast<int>(std::clamp(1e6 / (once * batch), double(least_rounds), 201.0));
  std::vector<double> our_times, mpi_times;
  for (int i = 0; i < rounds; ++i) {
    our_times.push_back(timed(ours, batch));
    mpi_times.push_back(timed(mpi, batch));
  }
  return {Median(our_times), Median(mpi_times)};
}

// Bytes per second that one core copies, while the others are idle.
double MemcpyGbps(dtrun::Communicator& comm) {
  double gbps = 0;
  comm.Barrier();
  if (comm.rank() == 0) {
    std::vector<char> from(64 << 20, 1), to(64 << 20);
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      const double start = Now();
      std::memcpy(to.data(), from.data(), to.size());
      times.push_back(Now() - start);
    }
    gbps = static_cast<double>(to.size()) / Median(times) / 1e9;
  }
  comm.Broadcast(Buffer(&gbps, 1), 0);
  return gbps;
}

double BusFactor(const std::string& op, double size) {
  if (op == "all_reduce") return 2 * (size - 1) / size;
  if (op == "all_gather") return (size - 1) / size;
  return 1;
}

json RunAll(dtrun::Context& job, const Settings& settings) {
  dtrun::Communicator& comm = job.world();
  const double memcpy_gbps = MemcpyGbps(comm);
  if (job.rank() == 0) {
    std::printf(
        "# %s, %d ranks, backend %s; MPI beside it; one core copies %.1f GB/s\n",
        settings.op.c_str(), comm.size(), comm.backend().c_str(), memcpy_gbps);
    std::printf(
        "#%11s %12s %5s %10s %8s %10s %10s %7s %8s %8s %7s\n", "size", "count", "type", "op",
        "memory", "time(us)", "mpi(us)", "ratio", "algbw", "busbw", "#wrong");
  }
  json rows = json::array();
  for (const bool mapped : {true, false}) {
    if (settings.memory != "both" && settings.memory != (mapped ? "mapped" : "private")) continue;
    for (const uint64_t size : settings.sizes) {
      Case measured(comm, settings.op, size, mapped);
      const uint64_t wrong = measured.Wrong();
      const Times times = Measure(comm, measured, settings.least_rounds);
      const double algbw = static_cast<double>(measured.bytes()) / times.ours_us / 1e3;
      if (job.rank() == 0) {
        std::printf(
            "%12llu %12llu %5s %10s %8s %10.2f %10.2f %7.2f %8.2f %8.2f %7llu\n",
            static_cast<unsigned long long>(measured.bytes()),
            static_cast<unsigned long long>(measured.count()), "f32", settings.op.c_str(),
            mapped ? "mapped" : "private", times.ours_us, times.mpi_us,
            times.mpi_us / times.ours_us, algbw, algbw * BusFactor(settings.op, comm.size()),
            static_cast<unsigned long long>(wrong));
        std::fflush(stdout);
      }
      rows.push_back({
          {"op", settings.op},
          {"dtype", "f32"},
          {"ranks", comm.size()},
          {"bytes", measured.bytes()},
          {"memory", mapped ? "mapped" : "private"},
          {"time_us", times.ours_us},
          {"mpi_time_us", times.mpi_us},
          {"ratio", times.mpi_us / times.ours_us},
          {"algbw_gbps", algbw},
          {"memcpy_gbps", memcpy_gbps},
          {"wrong", wrong},
      });
    }
  }
  return rows;
}

// The share of the hosts' CPU time that went to processes that are not of this job.
double ForeignShare(dtrun::Context& job, const dtrun::bench::CpuWatch& watch) {
  double own = watch.OwnSeconds();
  double host[2] = {0, 0};
  if (job.local_rank() == 0) {
    host[0] = watch.HostSeconds();
    host[1] = watch.AvailableSeconds();
  }
  job.world().AllReduce(Buffer(&own, 1));
  job.world().AllReduce(Buffer(host, 2));
  return std::max(0.0, host[0] - own) / host[1];
}

int Bench(dtrun::Context& job, const Settings& settings) {
  json rows;
  double foreign = 1;
  for (int attempt = 1; attempt <= 3 && foreign > 0.05; ++attempt) {
    dtrun::bench::CpuWatch watch;
    rows = RunAll(job, settings);
    foreign = ForeignShare(job, watch);
    if (job.rank() == 0) std::printf("# other processes used %.1f %% of the CPU\n", 100 * foreign);
  }
  if (foreign > 0.05) {
    if (job.rank() == 0)
      std::printf("INVALID: other processes used more than 5 %% of the CPU in three runs\n");
    return 1;
  }
  if (job.rank() == 0 && !settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    file << rows.dump(1) << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "all_reduce_perf: cannot write %s\n", settings.json_file.c_str());
      return 73;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The time of a collective beside raw MPI's.", "all_reduce_perf");
  app.add_option("--op", settings.op, "the collective")
      ->check(CLI::IsMember({"all_reduce", "broadcast", "all_gather"}))
      ->capture_default_str();
  app.add_option("--memory", settings.memory, "memory that all ranks map, private memory, or both")
      ->check(CLI::IsMember({"both", "mapped", "private"}))
      ->capture_default_str();
  app.add_option("--bytes", settings.sizes, "sizes, each the largest buffer of one rank")
      ->delimiter(',');
  app.add_option("--json", settings.json_file, "write the rows to this file");
  CLI11_PARSE(app, argc, argv);

  dtrun::Context job = dtrun::Init();
  int mpi = 0;
  MPI_Initialized(&mpi);
  if (!mpi) {
    std::fprintf(
        stderr, "all_reduce_perf: start it with dtrun -np 2 or more: it measures between ranks\n");
    return 2;
  }
  const int result = Bench(job, settings);
  job.Shutdown();
  return result;
}
