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
//   resnet18, transformer: examples/s of all ranks. The result is compared with trainers that
//        reduce all gradients after backward(), as a loop with the collectives alone does, and with
//        such trainers that reuse memory as under dtrun. It is also compared with trainers that do
//        not communicate and reuse memory: the difference is exposed communication. With --peer
//        COMMAND, it is compared with PyTorch's DistributedDataParallel in separate processes
//        (bench/peers/torch_ddp.py). Each round has new trainers here too.
//
// Run it under dtrun or mpirun.

#include <dlfcn.h>
#include <dtrun/torch.h>
#include <mpi.h>
#include <netinet/in.h>
#include <sys/socket.h>
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
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_program.h"
#include "bench/measure.h"
#include "bench/peer.h"
#include "bench/torch_networks.h"

namespace {

using Clock = std::chrono::steady_clock;
using dtrun::bench::Median;
using dtrun::bench::Peer;
using nlohmann::json;
using torch::Tensor;
using torch_networks::Cnn;
using torch_networks::Mlp;

struct Settings {
  std::string network = "all", peer;
  int rounds = 15;
  int cnn_batch = 128;  // of each rank
};

// A network beside DistributedDataParallel.
struct Case {
  const char* network;
  torch::nn::Sequential (*make)();
  Tensor (*input)(int64_t batch);
  int64_t batch;  // of each rank
};

const Case kCases[] = {
    {"resnet18", torch_networks::ResNet18,
     [](int64_t batch) {
       return torch::rand({batch, 3, 32, 32});
     },
     8},
    {"transformer", torch_networks::Transformer,
     [](int64_t batch) {
       return torch::randint(torch_networks::kWords, {batch, 64});
     },
     4},
};

enum class Zero { kZeroed, kNone };
const char* NameOf(Zero mode) { return mode == Zero::kZeroed ? "zeroed" : "none"; }

enum class How { kDtrun, kAfterBackward, kAfterBackwardReusing, kMpi, kInStep, kReusing, kAlone };

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
        labels_(LabelsFor(network_->forward(input_))),
        sgd_(network_->parameters(), 0.001) {
    if (how == How::kDtrun) {
      distributed_ = std::make_unique<dtrun::torch::DistributedOptimizer>(world, sgd_, *network_);
    }
    if (how == How::kReusing || how == How::kInStep || how == How::kAfterBackwardReusing) {
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
    if (how_ == How::kAfterBackward || how_ == How::kAfterBackwardReusing) AverageTogether();
    if (how_ == How::kInStep) world_.Barrier();
    torch::optim::Optimizer& optimizer =
        distributed_ != nullptr ? *distributed_ : static_cast<torch::optim::Optimizer&>(sgd_);
    optimizer.step();
  }

  // Seconds that this rank needs for `steps` steps. All ranks begin together.
  double Time(int steps) {
    world_.Barrier();
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) Step();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  int64_t parameter_count() const {
    int64_t count = 0;
    for (const Tensor& parameter : network_->parameters()) count += parameter.numel();
    return count;
  }

 private:
  static Tensor LabelsFor(const Tensor& outputs) {
    return torch::randint(outputs.size(1), {outputs.size(0)});
  }

  // Averages the gradients as hand-written code with dtrun does: all at once, after backward().
  void AverageTogether() {
    std::vector<dtrun::torch::TensorWork> reductions;
    for (Tensor& parameter : network_->parameters())
      reductions.push_back(dtrun::torch::StartAllReduce(
          world_, parameter.mutable_grad(), dtrun::ReduceOp::kAverage));
    for (dtrun::torch::TensorWork& reduction : reductions) reduction.Wait();
  }

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

// A free port of 127.0.0.1.
int FreePort() {
  const dtrun::bench::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no free port at 127.0.0.1");
  return ntohs(address.sin_port);
}

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

// The same trainer in PyTorch, as one process for each rank.
std::unique_ptr<Peer> StartPeer(dtrun::Context& job, const Settings& settings, const Case& of) {
  int port = job.rank() == 0 ? FreePort() : 0;
  job.world().Broadcast(dtrun::Buffer(&port, 1), 0);
  return std::make_unique<Peer>(
      settings.peer,
      std::vector<std::string>{
          "--serve", "--network", of.network, "--batch", std::to_string(of.batch)},
      std::vector<std::string>{
          "RANK=" + std::to_string(job.rank()), "WORLD_SIZE=" + std::to_string(job.size()),
          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port), "GLOO_SOCKET_IFNAME=lo"});
}

void CheckNetwork(const Peer& peer, const Settings& settings, const Case& of) {
  int64_t own = 0;
  for (const Tensor& parameter : of.make()->parameters()) own += parameter.numel();
  if (peer.parameters() == static_cast<uint64_t>(own)) return;
  throw dtrun::Error(
      dtrun::ErrorCode::kMismatch, "peer '" + settings.peer + "': its " + of.network + " has " +
                                       std::to_string(peer.parameters()) +
                                       " parameters, this one " + std::to_string(own));
}

// Examples/s of all ranks by the time of a step of the slowest.
json MeasureBesideDdp(dtrun::Context& job, const Settings& settings, const Case& of) {
  constexpr int kWarm = 2, kSteps = 4;
  int64_t parameters = 0;
  // The time of a step of the slowest rank.
  const auto slowest_us = [&](double seconds) {
    return Reduced(job.world(), seconds, dtrun::ReduceOp::kMax) / kSteps * 1e6;
  };
  const auto ours = [&](How how) {
    Trainer one(job.world(), how, Zero::kNone, of.make(), of.input(of.batch));
    parameters = one.parameter_count();
    one.Time(kWarm);
    return slowest_us(one.Time(kSteps));
  };
  std::vector<std::pair<std::string, std::function<double()>>> sides;
  const std::pair<const char*, How> kOurs[] = {
      {"dtrun", How::kDtrun},
      {"after_backward", How::kAfterBackward},
      {"after_backward_reusing", How::kAfterBackwardReusing},
      {"alone", How::kReusing}};
  for (const auto& [name, how] : kOurs)
    sides.emplace_back(name, [&ours, how = how] { return ours(how); });
  std::unique_ptr<Peer> peer;
  if (!settings.peer.empty()) {
    peer = StartPeer(job, settings, of);
    CheckNetwork(*peer, settings, of);
    for (const std::string& variant : peer->variants()) {
      sides.emplace_back("peer_" + variant, [&, variant] {
        for (int i = 0; i < kWarm; ++i) peer->Step(variant);
        job.world().Barrier();
        const auto start = Clock::now();
        for (int i = 0; i < kSteps; ++i) peer->Step(variant);
        return slowest_us(std::chrono::duration<double>(Clock::now() - start).count());
      });
    }
  }
  std::map<std::string, std::vector<double>> us, ratios;  // by side and round
  for (size_t round = 0; round < static_cast<size_t>(settings.rounds); ++round) {
    for (size_t turn = 0; turn < sides.size(); ++turn) {
      const auto& [name, step_us] = sides[(turn + round) % sides.size()];
      us[name].push_back(step_us());
    }
    for (const auto& [name, times] : us) ratios[name].push_back(times.back() / us["dtrun"].back());
  }
  json row = {
      {"case", of.network}, {"ranks", job.size()}, {"batch", of.batch}, {"parameters", parameters}};
  if (peer != nullptr) row["peer"] = peer->name();
  for (const auto& [name, times] : us) row["step_us"][name] = Median(times);
  for (const auto& [name, of_dtrun] : ratios) row["ratio"][name] = Median(of_dtrun);
  row["examples_per_s"] = of.batch * job.size() / Median(us["dtrun"]) * 1e6;
  return row;
}

void PrintBesideDdp(const json& row) {
  const json& us = row["step_us"];
  const auto ms = [&](const char* side) { return us[side].get<double>() / 1e3; };
  const auto ratio = [&](const char* side) { return row["ratio"][side].get<double>(); };
  std::printf(
      "%-11s %9lld parameters, batch %d: %7.1f examples/s; step %.1f ms, alone %.1f ms, reduced "
      "after backward %.1f ms (%.2f), with the same memory %.1f ms (%.2f)\n",
      row["case"].get<std::string>().c_str(), row["parameters"].get<long long>(),
      row["batch"].get<int>(), row["examples_per_s"].get<double>(), ms("dtrun"), ms("alone"),
      ms("after_backward"), ratio("after_backward"), ms("after_backward_reusing"),
      ratio("after_backward_reusing"));
  if (!row.contains("peer")) return;
  std::printf(
      "            %s: DDP %.1f ms (%.2f), alone %.1f ms; exposed communication %.1f ms, dtrun's "
      "%.1f ms\n",
      row["peer"].get<std::string>().c_str(), ms("peer_ddp"), ratio("peer_ddp"), ms("peer_alone"),
      ms("peer_ddp") - ms("peer_alone"), ms("dtrun") - ms("alone"));
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
  const auto add = [&](const json& row, void (*print)(const json&)) {
    rows.push_back(row);
    if (job.rank() == 0) print(row);
    std::fflush(stdout);
  };
  const auto wanted = [&](const std::string& network) {
    return settings.network == "all" || settings.network == network;
  };
  for (const Zero mode : {Zero::kZeroed, Zero::kNone}) {
    if (wanted("cnn")) add(MeasureCnn(job, mode, settings.cnn_batch, settings.rounds), PrintCnn);
    if (wanted("mlp")) add(MeasureMlp(job, mode, settings.rounds), PrintMlp);
  }
  for (const Case& each : kCases)
    if (wanted(each.network)) add(MeasureBesideDdp(job, settings, each), PrintBesideDdp);
  return rows;
}

}  // namespace

using dtrun::bench::OptionSet;
using dtrun::bench::Range;
using dtrun::bench::Words;

int main(int argc, char** argv) {
  Settings settings;
  OptionSet options("LibTorch trainers under dtrun beside others.", "torch_perf");
  options.Add(
      "--network", &settings.network, "what is trained",
      Words{"all", "cnn", "mlp", "resnet18", "transformer"});
  options.Add(
      "--peer", &settings.peer,
      "the command of bench/peers/torch_ddp.py, which trains resnet18 and transformer beside it");
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
