// Times LibTorch trainers under dtrun beside trainers without dtrun. All run alternately in the
// same processes, with one thread per rank.
//
//   cnn: the images/s of all ranks together. The result is compared with three others:
//        - as many processes that each train alone
//        - such processes with tensors that reuse memory as under dtrun. The difference is the cost
//          of synchronous training.
//        - the same, with a wait for each other after every step. Any synchronous trainer loses
//          this time to unequal cores and interruptions.
//        Every round has new trainers, because the place of their memory makes a difference of
//        several per cent. Ranks that share a last-level cache disturb each other more when they
//        work in step. So rounds with and without a cache for each core are also told apart.
//   mlp: the time of a step with 20 M parameters at batch 4, where communication weighs most. The
//        result is compared with the same trainer with an MPI_Allreduce per parameter after
//        backward(), and with a trainer without any communication.
//
// Run it under dtrun or mpirun.

#include <dlfcn.h>
#include <dtrun/torch.h>
#include <mpi.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"

namespace {

using dtrun::bench::Median;
using nlohmann::json;
using torch::Tensor;

struct Settings {
  std::string network = "all";
  int rounds = 15;
  int cnn_batch = 128;  // of each rank
};

enum class Zero { kZeroed, kNone };
const char* NameOf(Zero mode) { return mode == Zero::kZeroed ? "zeroed" : "none"; }

enum class How { kDtrun, kMpi, kInStep, kReusing, kAlone };

torch::nn::Sequential Cnn() {
  namespace nn = torch::nn;
  return nn::Sequential(
      nn::Conv2d(1, 32, 3), nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2),
      nn::Dropout(0.25), nn::Flatten(), nn::Linear(64 * 12 * 12, 128), nn::ReLU(), nn::Dropout(0.5),
      nn::Linear(128, 10));
}

torch::nn::Sequential Mlp() {
  torch::nn::Sequential layers;
  int64_t width = 1536;
  for (int i = 0; i < 5; ++i) {
    layers->push_back(torch::nn::Linear(width, 2048));
    layers->push_back(torch::nn::ReLU());
    width = 2048;
  }
  layers->push_back(torch::nn::Linear(width, 10));
  return layers;
}

// A model, its optimizer, and the batch of every step.
class Trainer {
 public:
  Trainer(
      dtrun::Communicator& world, How how, Zero mode, torch::nn::Sequential network, Tensor input)
      : world_(world),
        how_(how),
        mode_(mode),
        network_(std::move(network)),
        input_(std::move(input)),
        labels_(torch::randint(10, {input_.size(0)})),
        sgd_(network_->parameters(), 0.001) {
    if (how == How::kDtrun) {
      distributed_ = std::make_unique<dtrun::torch::DistributedOptimizer>(world, sgd_, *network_);
    }
    if (how == How::kReusing || how == How::kInStep) {
      reuse_ = std::make_unique<dtrun::torch::internal::Arena::User>();
    }
  }

  void Step() {
    if (distributed_ != nullptr) {
      distributed_->zero_grad(mode_ == Zero::kNone);
    } else {
      network_->zero_grad(mode_ == Zero::kNone);
    }
    torch::nn::functional::cross_entropy(network_->forward(input_), labels_).backward();
    if (how_ == How::kMpi) AverageWithMpi();
    if (how_ == How::kInStep) world_.Barrier();
    torch::optim::Optimizer& optimizer =
        distributed_ != nullptr ? *distributed_ : static_cast<torch::optim::Optimizer&>(sgd_);
    optimizer.step();
  }

  // Seconds that this rank needs for `steps` steps. All ranks begin together.
  double Time(int steps) {
    world_.Barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) Step();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  int64_t parameter_count() const {
    int64_t count = 0;
    for (const Tensor& parameter : network_->parameters()) count += parameter.numel();
    return count;
  }

 private:
  // Averages the gradients as hand-written code does.
  void AverageWithMpi() {
    for (Tensor& parameter : network_->parameters()) {
      Tensor gradient = parameter.grad();
      MPI_Allreduce(
          MPI_IN_PLACE, gradient.data_ptr<float>(), static_cast<int>(gradient.numel()), MPI_FLOAT,
          MPI_SUM, MPI_COMM_WORLD);
      gradient.div_(world_.size());
    }
  }

  dtrun::Communicator& world_;
  How how_;
  Zero mode_;
  torch::nn::Sequential network_;
  Tensor input_, labels_;
  torch::optim::SGD sgd_;
  std::unique_ptr<dtrun::torch::DistributedOptimizer> distributed_;
  std::unique_ptr<dtrun::torch::internal::Arena::User> reuse_;
};

// The library of LibTorch's matrix products, which are most of the computation.
std::string BlasFile() {
  Dl_info info{};
  void* sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
  if (sgemm == nullptr || dladdr(sgemm, &info) == 0) return "LibTorch's own";
  return std::filesystem::canonical(info.dli_fname).string();
}

double Reduced(dtrun::Communicator& world, double value, dtrun::ReduceOp op) {
  world.AllReduce(dtrun::Buffer(&value, 1), op);
  return value;
}

// Shares of rounds, by whether the cores of ranks 0 and 1 shared a last-level cache.
struct ByCache {
  std::vector<double> all, apart, one_cache;

  // `ns_before` and `ns_after` are CacheLineNs before and after the round.
  void Add(double share, double ns_before, double ns_after) {
    constexpr double kBetween = 100;
    all.push_back(share);
    if (std::min(ns_before, ns_after) > kBetween) apart.push_back(share);
    if (std::max(ns_before, ns_after) < kBetween) one_cache.push_back(share);
  }
};

// Null if there are no values.
json MedianOrNull(const std::vector<double>& values) {
  return values.empty() ? json() : json(Median(values));
}

json MeasureCnn(dtrun::Context& job, Zero mode, int64_t batch, int rounds) {
  const int steps = static_cast<int>(std::max<int64_t>(2, 1536 / batch));
  const auto trainer = [&](How how) {
    return Trainer(job.world(), how, mode, Cnn(), torch::rand({batch, 1, 28, 28}));
  };
  int64_t parameters = 0;
  // Images per second of this process.
  const auto rate = [&](How how) {
    Trainer one = trainer(how);
    parameters = one.parameter_count();
    one.Time(2);
    return static_cast<double>(batch * steps) / one.Time(steps);
  };
  constexpr How kSides[] = {How::kDtrun, How::kReusing, How::kInStep, How::kAlone};
  constexpr size_t kCount = std::size(kSides);
  std::vector<double> rates, alone_rates, shares, shares_in_step;
  ByCache shares_reusing;
  double ns = dtrun::bench::CacheLineNs(job);
  for (size_t i = 0; i < static_cast<size_t>(rounds); ++i) {
    std::map<How, double> of;  // images/s of all ranks
    for (size_t turn = 0; turn < kCount; ++turn) {
      const How how = kSides[(turn + i) % kCount];
      const bool together = how == How::kDtrun || how == How::kInStep;
      const auto op = together ? dtrun::ReduceOp::kMin : dtrun::ReduceOp::kSum;
      of[how] = Reduced(job.world(), rate(how), op) * (together ? job.size() : 1);
    }
    const double ours = of[How::kDtrun];
    rates.push_back(ours), alone_rates.push_back(of[How::kAlone]);
    shares.push_back(ours / of[How::kAlone]);
    shares_in_step.push_back(ours / of[How::kInStep]);
    const double ns_before = ns;
    ns = dtrun::bench::CacheLineNs(job);
    shares_reusing.Add(ours / of[How::kReusing], ns_before, ns);
  }
  return {
      {"case", "cnn"},
      {"mode", NameOf(mode)},
      {"ranks", job.size()},
      {"batch", batch},
      {"parameters", parameters},
      {"images_per_s", Median(rates)},
      {"alone_images_per_s", Median(alone_rates)},
      {"share", Median(shares)},
      {"share_reusing", Median(shares_reusing.all)},
      {"share_in_step", Median(shares_in_step)},
      {"rounds_apart", shares_reusing.apart.size()},
      {"share_reusing_apart", MedianOrNull(shares_reusing.apart)},
      {"rounds_one_cache", shares_reusing.one_cache.size()},
      {"share_reusing_one_cache", MedianOrNull(shares_reusing.one_cache)}};
}

json MeasureMlp(dtrun::Context& job, Zero mode, int rounds) {
  constexpr int kBatch = 4, kSteps = 8;
  int64_t parameters = 0;
  // The step time of the slowest rank. Each call makes a new trainer, so that no trainer affects
  // the memory of others.
  const auto step_us = [&](How how) {
    Trainer one(job.world(), how, mode, Mlp(), torch::randn({kBatch, 1536}));
    parameters = one.parameter_count();
    one.Time(kSteps / 4);
    return Reduced(job.world(), one.Time(kSteps), dtrun::ReduceOp::kMax) / kSteps * 1e6;
  };
  std::vector<double> times, mpi_times, alone_times, ratios;
  for (int i = 0; i < rounds; ++i) {
    times.push_back(step_us(How::kDtrun));
    mpi_times.push_back(step_us(How::kMpi));
    alone_times.push_back(step_us(How::kAlone));
    ratios.push_back(mpi_times.back() / times.back());
  }
  return {
      {"case", "mlp"},
      {"mode", NameOf(mode)},
      {"ranks", job.size()},
      {"batch", kBatch},
      {"parameters", parameters},
      {"step_us", Median(times)},
      {"mpi_step_us", Median(mpi_times)},
      {"alone_step_us", Median(alone_times)},
      {"ratio", Median(ratios)}};
}

void PrintCnn(const json& row) {
  std::printf(
      "cnn  %-7s %9lld parameters, batch %d: %8.0f images/s; alone %8.0f images/s; share %5.1f %% "
      "(of processes that reuse memory as well %5.1f %%, and are in step %5.1f %%)\n",
      row["mode"].get<std::string>().c_str(), row["parameters"].get<long long>(),
      row["batch"].get<int>(), row["images_per_s"].get<double>(),
      row["alone_images_per_s"].get<double>(), 100 * row["share"].get<double>(),
      100 * row["share_reusing"].get<double>(), 100 * row["share_in_step"].get<double>());
  const auto print = [&](const char* text, const char* rounds, const char* share) {
    if (row[share].is_null()) return;
    std::printf(
        "     of %d rounds with %s: %5.1f %% of processes that reuse memory\n",
        row[rounds].get<int>(), text, 100 * row[share].get<double>());
  };
  print("a last-level cache for each core", "rounds_apart", "share_reusing_apart");
  print("both cores on one", "rounds_one_cache", "share_reusing_one_cache");
}

// Also prints the step time without communication, and the time that dtrun and MPI each add.
void PrintMlp(const json& row) {
  const double step = row["step_us"], mpi = row["mpi_step_us"], alone = row["alone_step_us"];
  std::printf(
      "mlp  %-7s %9lld parameters, batch %d: %8.1f ms a step; with MPI %8.1f ms; ratio %5.2f "
      "(compute alone %.1f ms: dtrun adds %.1f, MPI %.1f)\n",
      row["mode"].get<std::string>().c_str(), row["parameters"].get<long long>(),
      row["batch"].get<int>(), step / 1e3, mpi / 1e3, row["ratio"].get<double>(), alone / 1e3,
      (step - alone) / 1e3, (mpi - alone) / 1e3);
}

void PrintHeader(dtrun::Context& job) {
  std::printf(
      "# LibTorch %s (BLAS: %s), %d ranks of one thread, backend %s; beside it %s\n", TORCH_VERSION,
      BlasFile().c_str(), job.size(), job.world().backend().c_str(),
      dtrun::bench::ReadPeerSettings().version.c_str());
}

json MeasureAll(dtrun::Context& job, const Settings& settings) {
  if (job.rank() == 0) PrintHeader(job);
  json rows = json::array();
  for (const Zero mode : {Zero::kZeroed, Zero::kNone}) {
    if (settings.network != "mlp")
      rows.push_back(MeasureCnn(job, mode, settings.cnn_batch, settings.rounds));
    if (settings.network != "mlp" && job.rank() == 0) PrintCnn(rows.back());
    if (settings.network != "cnn") rows.push_back(MeasureMlp(job, mode, settings.rounds));
    if (settings.network != "cnn" && job.rank() == 0) PrintMlp(rows.back());
    std::fflush(stdout);
  }
  return rows;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  Settings settings;
  OptionSet options("LibTorch trainers under dtrun beside others.", "torch_perf");
  options.Add("--network", &settings.network, "what is trained", Words{"all", "cnn", "mlp"});
  options.Add(
      "--cnn-batch", &settings.cnn_batch, "images of each rank in a step of the cnn",
      Range<int>{1, 1 << 20});
  options.Add("--rounds", &settings.rounds, "timed rounds of each side", Range<int>{1, 10000});
  at::set_num_threads(1);
  return dtrun::bench::Main(
      options,
      {"torch_perf", [&](dtrun::Context& job) { return MeasureAll(job, settings); },
       dtrun::bench::ObstacleBesideMpi},
      argc, argv);
}
