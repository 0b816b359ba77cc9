#ifndef DTRUN_STRATEGIES_H_
#define DTRUN_STRATEGIES_H_

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/strategy_optimizer.h>
#include <dtrun/detail/together.h>
#include <dtrun/detail/variable.h>
#include <dtrun/device_choice.h>
#include <dtrun/error.h>
#include <dtrun/parameter_server_strategy.h>
#include <dtrun/strategy.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {

/// The ranks that a strategy is made for: a Context, or a communicator with known hosts.
struct StrategyJob {
  /// The ranks of `job`, which outlives this object.
  StrategyJob(Context& job)
      : world(&job.world()),
        context(&job),
        hosts(job.hosts()),
        host(HostOf(job)),
        local_rank(job.local_rank()) {}
  /// The ranks of `world_in`, which outlives this object. `hosts_in` is in the order in which the
  /// ranks are placed on the hosts.
  StrategyJob(Communicator& world_in, std::vector<Host> hosts_in)
      : world(&world_in), hosts(std::move(hosts_in)) {
    for (local_rank = world->rank(); local_rank >= hosts[host].slots; ++host)
      local_rank -= hosts[host].slots;
  }

  Communicator* world;         ///< all ranks of the strategy
  Context* context = nullptr;  ///< the job; null: made from a communicator
  std::vector<Host> hosts;     ///< in the order in which the ranks are placed on them
  size_t host = 0;             ///< index of this rank's host in `hosts`
  int local_rank = 0;          ///< number of this rank on its host, from 0

  /// The number of ranks.
  int size() const { return world->size(); }
  /// The number of ranks on this rank's host.
  int local_size() const { return hosts[host].slots; }

 private:
  static size_t HostOf(const Context& job) {
    const std::vector<Host> hosts = job.hosts();
    size_t host = 0;
    for (int before = job.cross_rank(); host + 1 < hosts.size(); ++host)
      if (hosts[host].slots > job.local_rank() && before-- == 0) break;
    return host;
  }
};

/// Names of devices, as ParseDevice reads them: "cpu" or, for example, "cuda:1". The name "gpu:*"
/// stands alone: each rank of a host takes the GPU with the number of its local rank.
using DeviceNames = std::vector<std::string>;

/// The devices of a strategy's replicas: a list by local rank, the same on every host, or this
/// rank's own device. Empty: the CPU for each rank.
class ReplicaDevices {
 public:
  ReplicaDevices() = default;
  /// A list with one name for each rank of a host, or "gpu:*".
  ReplicaDevices(DeviceNames names) : names_(std::move(names)) {}
  /// The same as DeviceNames.
  ReplicaDevices(std::initializer_list<std::string> names) : names_(names) {}
  /// The device of this rank, as the caller has chosen it (ChooseDevice). Other ranks may have the
  /// same GPU. Either all ranks have a GPU, or none.
  ReplicaDevices(const Device& own) : own_(own) {}

  /// The names, or "gpu" or "cpu" for an own device.
  DeviceNames names() const {
    if (!own_) return names_;
    return {own_->kind == DeviceKind::kCpu ? "cpu" : "gpu"};
  }
  /// Checks that this host has the devices, and that there is one for each rank of the host, all of
  /// the same kind. kInvalidArgument or kUnavailable, with the name of the strategy.
  void Check(const StrategyJob& job, const std::string& strategy) const;
  /// The device of this rank.
  Device Of(const StrategyJob& job) const;

 private:
  bool is_any_gpu() const { return names_.size() == 1 && IsAnyGpu(names_[0]); }
  Device AnyGpu(const StrategyJob& job) const {
    DeviceChoiceInput input;
    input.wish = "cuda";
    input.local_rank = job.local_rank;
    input.local_size = job.local_size();
    input.device_count = CudaDeviceCount(&input.why_no_gpu);
    return ChooseDevice(input).device;
  }

  DeviceNames names_;
  std::optional<Device> own_;
};

namespace detail {

/// The text of a strategy: its name and its devices.
inline std::string SpecText(const std::string& name, const DeviceNames& devices) {
  std::string text = name;
  for (size_t i = 0; i < devices.size(); ++i) text += (i == 0 ? ":" : ",") + devices[i];
  return text;
}

[[noreturn]] inline void RefuseStrategy(const std::string& name, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "strategy " + name + ": " + text);
}

/// Refuses a job with parameter servers: each rank would train alone, without any error.
inline void CheckNoServers(const StrategyJob& job, const std::string& spec) {
  const int servers = job.context == nullptr ? 0 : job.context->parameter_servers();
  if (servers > 0)
    RefuseStrategy(
        spec.substr(0, spec.find(':')),
        "this job has parameter servers (dtrun --ps " + std::to_string(servers) +
            "), whose workers step apart; use parameter_server, or start the job without --ps");
}

/// Runs `check` and returns the strategy's own communicator of all ranks. Collective: all ranks
/// make the same strategy, otherwise kMismatch. All ranks throw the same error.
template <typename Check>
Communicator Admit(const StrategyJob& job, const std::string& spec, const Check& check) {
  CheckNoServers(job, spec);
  CheckSameText(*job.world, "strategies", spec);
  ThrowTogether(*job.world, "rank", check);
  return job.world->Duplicate();
}

inline void CheckAlone(const StrategyJob& job, const std::string& name) {
  if (job.size() > 1)
    RefuseStrategy(
        name, "found " + std::to_string(job.size()) +
                  " ranks; expected 1: start the program by itself, or use mirrored");
}

inline void CheckOneHost(const StrategyJob& job, const std::string& name) {
  if (job.hosts.size() < 2) return;
  std::string names;
  for (const Host& host : job.hosts) names += (names.empty() ? "" : ", ") + host.name;
  RefuseStrategy(
      name, "the ranks are on " + std::to_string(job.hosts.size()) + " hosts (" + names +
                "); expected one; use multi_worker_mirrored");
}

}  // namespace detail

inline void ReplicaDevices::Check(const StrategyJob& job, const std::string& strategy) const {
  if (own_) return CheckDevice(*own_);
  if (is_any_gpu()) {
    AnyGpu(job);
    return;
  }
  std::vector<Device> devices;
  for (const std::string& name : names_) {
    devices.push_back(ParseDevice(name));
    CheckDevice(devices.back());
    if (devices.back().kind != devices[0].kind)
      detail::RefuseStrategy(
          strategy, "found GPUs and cpu; expected GPUs for all ranks, or cpu for all ranks");
    const bool again = std::count(devices.begin(), devices.end(), devices.back()) > 1;
    if (again && devices[0].kind == DeviceKind::kCuda)
      detail::RefuseStrategy(
          strategy,
          "found " + devices.back().name() + " twice; expected another GPU for each rank");
  }
  const size_t ranks = static_cast<size_t>(job.local_size());
  if (names_.empty() || names_.size() == ranks) return;
  detail::RefuseStrategy(
      strategy, "found " + std::to_string(names_.size()) + " devices and " + std::to_string(ranks) +
                    " ranks on host " + job.hosts[job.host].name +
                    "; expected one for each rank (dtrun -np " + std::to_string(names_.size()) +
                    ")");
}

inline Device ReplicaDevices::Of(const StrategyJob& job) const {
  if (own_) return *own_;
  if (is_any_gpu()) return AnyGpu(job);
  return names_.empty() ? Device() : ParseDevice(names_[static_cast<size_t>(job.local_rank)]);
}

/// The common part of strategies that keep a copy of the variables in each replica. Gradients are
/// added over all replicas while the backward pass still runs.
class MirroringStrategy : public Strategy {
 public:
  std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) override {
    return std::make_unique<MirroredOptimizer>(replicas(), optimizer, options);
  }
  Device device() const override { return device_; }

 protected:
  /// Calls `devices.Of(job)` after the ranks have agreed in `admit`, which returns the strategy's
  /// communicator.
  template <typename Admit>
  MirroringStrategy(const StrategyJob& job, const ReplicaDevices& devices, const Admit& admit)
      : Strategy(admit()), device_(devices.Of(job)) {}

 private:
  Device device_;
};

namespace detail {

/// Checks a strategy of one rank and at most one device, and returns its communicator.
inline Communicator AdmitAlone(
    const StrategyJob& job, const std::string& name, const ReplicaDevices& devices) {
  const std::string spec = SpecText(name, devices.names());
  return Admit(job, spec, [&] {
    CheckAlone(job, name);
    if (devices.names().size() > 1) RefuseStrategy(name, "takes one device, found '" + spec + "'");
    devices.Check(job, name);
  });
}

}  // namespace detail

/// No distribution: one rank, on the CPU or on a given device. Every call of a strategy works.
class DefaultStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: the job has several ranks, or the device name is wrong. kUnavailable, with
  /// the reason: replicas cannot compute on that device here.
  explicit DefaultStrategy(const StrategyJob& job, const ReplicaDevices& devices = {})
      : MirroringStrategy(
            job, devices, [&] { return detail::AdmitAlone(job, "default", devices); }) {}
  std::string name() const override { return "default"; }
};

/// One rank on one device, to try a program.
class OneDeviceStrategy : public MirroringStrategy {
 public:
  /// Errors as in DefaultStrategy.
  explicit OneDeviceStrategy(const StrategyJob& job, const std::string& device = "cpu")
      : OneDeviceStrategy(job, ReplicaDevices{device}) {}
  /// The same. No device: the CPU.
  OneDeviceStrategy(const StrategyJob& job, const ReplicaDevices& devices)
      : MirroringStrategy(
            job, devices, [&] { return detail::AdmitAlone(job, "one_device", devices); }) {}
  std::string name() const override { return "one_device"; }
};

/// The ranks of one host, each a replica with its own device.
class MirroredStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: the job has several hosts, or the numbers of devices and ranks differ.
  /// kUnavailable as in OneDeviceStrategy.
  explicit MirroredStrategy(const StrategyJob& job, const ReplicaDevices& devices = {})
      : MirroringStrategy(job, devices, [&] {
          return detail::Admit(job, detail::SpecText("mirrored", devices.names()), [&] {
            detail::CheckOneHost(job, "mirrored");
            devices.Check(job, "mirrored");
          });
        }) {}
  std::string name() const override { return "mirrored"; }
};

/// The ranks of any number of hosts. Hosts may have different numbers of ranks. TF_CONFIG is
/// supported: `Init()` uses it to join processes that were started by hand, and `dtrun` reads hosts
/// from it.
class MultiWorkerMirroredStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: TF_CONFIG describes another job, or a host has another number of ranks than
  /// devices. kUnavailable as in OneDeviceStrategy.
  explicit MultiWorkerMirroredStrategy(const StrategyJob& job, const ReplicaDevices& devices = {})
      : MirroringStrategy(job, devices, [&] {
          return detail::Admit(
              job, detail::SpecText("multi_worker_mirrored", devices.names()), [&] {
                if (job.context != nullptr) job.context->CheckTfConfig();
                devices.Check(job, "multi_worker_mirrored");
              });
        }) {}
  std::string name() const override { return "multi_worker_mirrored"; }
};

/// One copy of the variables per host, in memory that all ranks of the host map. The replicas
/// compute. Gradients are reduced and applied once per host.
class CentralStorageStrategy : public Strategy {
 public:
  /// `devices` as in MirroredStrategy, on each host. A replica on a GPU copies its gradients to the
  /// variables' memory, and the new values back.
  explicit CentralStorageStrategy(const StrategyJob& job, const ReplicaDevices& devices = {})
      : Strategy(detail::Admit(
            job, detail::SpecText("central_storage", devices.names()),
            [&] { devices.Check(job, "central_storage"); })),
        device_(devices.Of(job)),
        host_(replicas().Split(static_cast<int>(job.host), replicas().rank())) {}
  std::string name() const override { return "central_storage"; }
  Device device() const override { return device_; }
  bool parameters_in_host_memory() const override { return true; }

  /// kInvalidArgument: the optimizer is not a SliceableOptimizer. kUnavailable: the ranks of a host
  /// are not connected by shared memory.
  std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) override {
    if (AsSliceable(optimizer) == nullptr)
      detail::RefuseStrategy(
          name(),
          "the ranks of a host share the update, but the update of this optimizer cannot be cut "
          "into slices; use multi_worker_mirrored");
    return std::make_unique<CentralOptimizer>(replicas(), *host_, optimizer, options);
  }
  std::unique_ptr<VariablePlace> PlaceMirrored(uint64_t bytes) override {
    return std::make_unique<SharedPlace>(*host_, bytes);
  }

 private:
  Device device_;
  std::optional<Communicator> host_;
};

/// The names that MakeStrategy knows.
inline const std::vector<std::string>& StrategyNames() {
  static const std::vector<std::string> names = {"default",         "one_device",
                                                 "mirrored",        "multi_worker_mirrored",
                                                 "central_storage", "parameter_server"};
  return names;
}

/// The devices after the name of a strategy: "one_device:cpu" -> {"cpu"}. Empty if there are none.
inline DeviceNames DeviceNamesIn(const std::string& spec) {
  DeviceNames names;
  for (size_t at = spec.find(':'); at != std::string::npos;) {
    const size_t comma = spec.find(',', at + 1);
    names.push_back(spec.substr(at + 1, comma == std::string::npos ? comma : comma - at - 1));
    at = comma;
  }
  return names;
}

/// Makes a strategy from its name, with devices after the name if the strategy takes devices:
/// "mirrored", "one_device:cpu", "central_storage:cpu,cpu", "multi_worker_mirrored:gpu:*",
/// "parameter_server:cuda:0". Collective; all ranks get the same error. With `own`, the device of
/// this rank, `spec` is only a name.
///
/// Errors: kInvalidArgument (an unknown name, "parameter_server" in a job without parameter
/// servers, another name in a job with them, and the errors of the constructors), kMismatch (the
/// ranks make different strategies), kUnavailable (a device; also "tpu", and the text names
/// alternatives).
inline std::unique_ptr<Strategy> MakeStrategy(
    const StrategyJob& job, const std::string& spec,
    const std::optional<Device>& own = std::nullopt) {
  const std::string name = spec.substr(0, spec.find(':'));
  const DeviceNames names = DeviceNamesIn(spec);
  if (name == "parameter_server") {
    if (job.context == nullptr || job.context->parameter_servers() == 0)
      detail::RefuseStrategy(name, "this job has no parameter servers; start it with dtrun --ps N");
    ParameterStrategyOptions options;
    options.devices = own ? DeviceNames{own->name()} : names;
    return std::make_unique<ParameterServerStrategy>(*job.context, options);
  }
  const ReplicaDevices devices = own ? ReplicaDevices(*own) : ReplicaDevices(names);
  if (name == "default") return std::make_unique<DefaultStrategy>(job, devices);
  if (name == "one_device") return std::make_unique<OneDeviceStrategy>(job, devices);
  if (name == "mirrored") return std::make_unique<MirroredStrategy>(job, devices);
  if (name == "multi_worker_mirrored")
    return std::make_unique<MultiWorkerMirroredStrategy>(job, devices);
  if (name == "central_storage") return std::make_unique<CentralStorageStrategy>(job, devices);
  detail::Admit(job, spec, [&] {
    if (name == "tpu")
      throw Error(
          ErrorCode::kUnavailable,
          "strategy tpu: there are no TPUs here; use mirrored (one host) or multi_worker_mirrored");
    std::string known;
    for (const std::string& each : StrategyNames()) known += (known.empty() ? "" : ", ") + each;
    throw Error(
        ErrorCode::kInvalidArgument,
        "strategy '" + name + "' is unknown; expected one of " + known);
  });
  return nullptr;  // Admit has thrown
}

}  // namespace dtrun

#endif
