#ifndef DTRUN_STRATEGIES_H_
#define DTRUN_STRATEGIES_H_

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/detail/device.h>
#include <dtrun/detail/gradient_checks.h>
#include <dtrun/detail/strategy_optimizer.h>
#include <dtrun/detail/together.h>
#include <dtrun/detail/variable.h>
#include <dtrun/error.h>
#include <dtrun/strategy.h>

#include <cstdint>
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
      : world(&job.world()), context(&job), hosts(job.hosts()), host(HostOf(job)) {}
  /// The ranks of `world_in`, which outlives this object. `hosts_in` is in the order in which the
  /// ranks are placed on the hosts.
  StrategyJob(Communicator& world_in, std::vector<Host> hosts_in)
      : world(&world_in), hosts(std::move(hosts_in)) {
    for (int left = world->rank(); left >= hosts[host].slots; ++host) left -= hosts[host].slots;
  }

  Communicator* world;         ///< all ranks of the strategy
  Context* context = nullptr;  ///< the job; null: made from a communicator
  std::vector<Host> hosts;     ///< in the order in which the ranks are placed on them
  size_t host = 0;             ///< index of this rank's host in `hosts`

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

/// Names of devices, as ParseDevice reads them: "cpu" or, for example, "cuda:1".
using DeviceNames = std::vector<std::string>;

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

/// Checks that there is one device for each rank of this host, or an empty list.
inline void CheckDevices(
    const StrategyJob& job, const std::string& name, const DeviceNames& devices) {
  for (const std::string& device : devices) CheckDevice(ParseDevice(device));
  for (size_t i = 1; i < devices.size(); ++i) {
    const Device device = ParseDevice(devices[i]);
    if (device.kind != ParseDevice(devices[0]).kind)
      RefuseStrategy(name, "found GPUs and cpu; expected GPUs for all ranks, or cpu for all ranks");
    for (size_t k = 0; k < i && device.kind == DeviceKind::kCuda; ++k)
      if (ParseDevice(devices[k]) == device)
        RefuseStrategy(
            name, "found " + device.name() + " twice; expected another GPU for each rank");
  }
  const size_t ranks = static_cast<size_t>(job.local_size());
  if (devices.empty() || devices.size() == ranks) return;
  RefuseStrategy(
      name, "found " + std::to_string(devices.size()) + " devices and " + std::to_string(ranks) +
                " ranks on host " + job.hosts[job.host].name +
                "; expected one for each rank (dtrun -np " + std::to_string(devices.size()) + ")");
}

/// Refuses GPUs. The variables of the strategy are in host memory.
inline void CheckHostMemory(const std::string& name, const DeviceNames& devices) {
  for (const std::string& device : devices)
    if (ParseDevice(device).kind != DeviceKind::kCpu)
      throw Error(
          ErrorCode::kUnavailable, "strategy '" + name + "': device " + ParseDevice(device).name() +
                                       ": the variables are in host memory, which replicas on GPUs "
                                       "cannot use; use cpu, or mirrored");
}

/// The device of this rank, in a list by rank of a job on one host. An empty list means the CPU.
inline Device DeviceOf(const StrategyJob& job, const DeviceNames& devices) {
  if (devices.empty()) return Device();
  return ParseDevice(devices[static_cast<size_t>(job.world->rank())]);
}

}  // namespace detail

/// The common part of strategies that keep a copy of the variables in each replica. Gradients are
/// added over all replicas while the backward pass still runs.
class MirroringStrategy : public Strategy {
 public:
  std::unique_ptr<StrategyOptimizer> Wrap(
      Optimizer& optimizer, const StrategyOptimizerOptions& options) override {
    return std::make_unique<MirroredOptimizer>(replicas(), optimizer, options);
  }

 protected:
  using Strategy::Strategy;
};

/// No distribution: one rank. Every call of a strategy works.
class DefaultStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: the job has several ranks.
  explicit DefaultStrategy(const StrategyJob& job)
      : MirroringStrategy(
            detail::Admit(job, "default", [&] { detail::CheckAlone(job, "default"); })) {}
  std::string name() const override { return "default"; }
};

/// One rank on one device, to try a program.
class OneDeviceStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: the job has several ranks, or the device name is wrong. kUnavailable, with
  /// the reason: replicas cannot compute on that device here.
  explicit OneDeviceStrategy(const StrategyJob& job, const std::string& device = "cpu")
      : MirroringStrategy(detail::Admit(
            job, detail::SpecText("one_device", {device}),
            [&] {
              detail::CheckAlone(job, "one_device");
              CheckDevice(ParseDevice(device));
            })),
        device_(ParseDevice(device)) {}
  std::string name() const override { return "one_device"; }
  Device device() const override { return device_; }

 private:
  Device device_;
};

/// The ranks of one host, each a replica with its own device.
class MirroredStrategy : public MirroringStrategy {
 public:
  /// `devices` is by local rank. Empty: the CPU for each rank. kInvalidArgument: the job has
  /// several hosts, or the numbers of devices and ranks differ. kUnavailable as in
  /// OneDeviceStrategy.
  explicit MirroredStrategy(const StrategyJob& job, const DeviceNames& devices = {})
      : MirroringStrategy(detail::Admit(
            job, detail::SpecText("mirrored", devices),
            [&] {
              detail::CheckOneHost(job, "mirrored");
              detail::CheckDevices(job, "mirrored", devices);
            })),
        device_(detail::DeviceOf(job, devices)) {}
  std::string name() const override { return "mirrored"; }
  Device device() const override { return device_; }

 private:
  Device device_;
};

/// The ranks of any number of hosts. Hosts may have different numbers of ranks. TF_CONFIG is
/// supported: `Init()` uses it to join processes that were started by hand on one host, and `dtrun`
/// reads hosts from it.
class MultiWorkerMirroredStrategy : public MirroringStrategy {
 public:
  /// kInvalidArgument: TF_CONFIG describes another job.
  explicit MultiWorkerMirroredStrategy(const StrategyJob& job)
      : MirroringStrategy(detail::Admit(job, "multi_worker_mirrored", [&] {
          if (job.context != nullptr) job.context->CheckTfConfig();
        })) {}
  std::string name() const override { return "multi_worker_mirrored"; }
};

/// One copy of the variables per host, in memory that all ranks of the host map. The replicas
/// compute. Gradients are reduced and applied once per host.
class CentralStorageStrategy : public Strategy {
 public:
  /// `devices` as in MirroredStrategy, on each host.
  explicit CentralStorageStrategy(const StrategyJob& job, const DeviceNames& devices = {})
      : Strategy(detail::Admit(
            job, detail::SpecText("central_storage", devices),
            [&] {
              detail::CheckDevices(job, "central_storage", devices);
              detail::CheckHostMemory("central_storage", devices);
            })),
        host_(replicas().Split(static_cast<int>(job.host), replicas().rank())) {}
  std::string name() const override { return "central_storage"; }

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
  std::optional<Communicator> host_;
};

namespace detail {

/// Throws: a job with parameter servers has no Strategy. Workers may be lost, so they have no
/// collectives.
[[noreturn]] inline void RefuseServers(const StrategyJob& job) {
  if (job.context == nullptr || job.context->parameter_servers() == 0)
    RefuseStrategy(
        "parameter_server", "this job has no parameter servers; start it with dtrun --ps N");
  RefuseStrategy(
      "parameter_server",
      "the workers never wait for each other, and a Strategy needs all replicas together; use a "
      "ParameterServer or a ParameterWorker (dtrun/parameter_server.h)");
}

}  // namespace detail

/// The names that MakeStrategy knows. MakeStrategy makes all of them except "parameter_server".
/// There, each rank is a ParameterServer or a ParameterWorker instead (RoleOf).
inline const std::vector<std::string>& StrategyNames() {
  static const std::vector<std::string> names = {"default",         "one_device",
                                                 "mirrored",        "multi_worker_mirrored",
                                                 "central_storage", "parameter_server"};
  return names;
}

/// Makes a strategy from its name, with devices after the name if the strategy takes devices:
/// "mirrored", "one_device:cpu", "central_storage:cpu,cpu". Collective; all ranks get the same
/// error.
///
/// Errors: kInvalidArgument (an unknown name, "parameter_server", a job with parameter servers, and
/// the errors of the constructors), kMismatch (the ranks make different strategies), kUnavailable
/// (a device; also "tpu", and the text names alternatives).
inline std::unique_ptr<Strategy> MakeStrategy(const StrategyJob& job, const std::string& spec) {
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  DeviceNames devices;
  for (size_t at = colon; at != std::string::npos;) {
    const size_t comma = spec.find(',', at + 1);
    devices.push_back(spec.substr(at + 1, comma == std::string::npos ? comma : comma - at - 1));
    at = comma;
  }
  if (name == "parameter_server") detail::RefuseServers(job);
  const bool takes_devices = name != "default" && name != "multi_worker_mirrored";
  if (!takes_devices && !devices.empty())
    detail::Admit(job, spec, [&] { detail::RefuseStrategy(name, "takes no devices"); });
  if (name == "default") return std::make_unique<DefaultStrategy>(job);
  if (name == "one_device" && devices.size() < 2)
    return std::make_unique<OneDeviceStrategy>(job, devices.empty() ? "cpu" : devices[0]);
  if (name == "mirrored") return std::make_unique<MirroredStrategy>(job, devices);
  if (name == "multi_worker_mirrored") return std::make_unique<MultiWorkerMirroredStrategy>(job);
  if (name == "central_storage") return std::make_unique<CentralStorageStrategy>(job, devices);
  detail::Admit(job, spec, [&] {
    if (name == "one_device")
      detail::RefuseStrategy(name, "takes one device, found '" + spec + "'");
    if (name == "tpu")
      throw Error(
          ErrorCode::kUnavailable,
          "strategy tpu: there are no TPUs here; use mirrored (one host) or multi_worker_mirrored");
    std::string names;
    for (const std::string& known : StrategyNames()) names += (names.empty() ? "" : ", ") + known;
    throw Error(
        ErrorCode::kInvalidArgument,
        "strategy '" + name + "' is unknown; expected one of " + names);
  });
  return nullptr;  // Admit has thrown
}

}  // namespace dtrun

#endif
