// A collective becomes steps (ops/collective/device_parts.cc). Two groups carry out a step: the
// group of this host's ranks, and the group of a rail, which has one rank of each host. The way up
// of a step is enqueued before the previous step crosses. NCCL crosses in a separate stream, so
// that the rails and the ranks of a host work at the same time:
//
//   caller's stream   up 0 | up 1    | down 0, up 2 | down 1 | down 2
//   across                 | step 0  | step 1       | step 2 |

#include "ops/hierarchical/hierarchical_device_group.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "ops/collective/device_parts.h"
#include "ops/collective/host_map.h"
#include "ops/communicator/communicator_base.h"
#include "ops/communicator/communicator_setup.h"
#include "ops/cuda/cuda_ipc_group.h"
#include "ops/cuda/host_staged_group.h"
#include "ops/cuda/kernel_args.h"
#include "ops/cuda/peer_memory.h"
#include "ops/nccl/nccl_group.h"

namespace dtrun::ops::cuda {
namespace {

using base::Text;

HostMap HostsOf(const Communicator& host) {
  const std::vector<std::string>& names = host.members().hosts;
  std::vector<int> numbers(static_cast<size_t>(host.size()));
  for (size_t r = 0; r < names.size(); ++r) {
    const auto first = std::find(names.begin(), names.end(), names[r]);
    numbers[r] = static_cast<int>(first - names.begin());
  }
  return HostMap(numbers);
}

class HierarchicalGroup : public DeviceGroup {
 public:
  HierarchicalGroup(
      Communicator& host, const gpu::Device& device, const HierarchicalOptions& options)
      : host_(host),
        device_(device),
        hosts_(HostsOf(host)),
        chunk_bytes_(options.chunk_bytes_per_rail * static_cast<uint64_t>(hosts_.rails())),
        slot_bytes_((SlotBytes(hosts_, chunk_bytes_) + 255) / 256 * 256),
        crossing_(device, gpu::Priority::kHigh),
        up_{gpu::Event(device), gpu::Event(device)},
        crossed_(device),
        done_(device) {
    const int rank = host.rank(), local_rank = hosts_.local_rank(rank);
    local_ranks_ = host.Split(hosts_.host(rank), rank);
    rail_ranks_ = host.Split(local_rank < hosts_.rails() ? local_rank : -1, hosts_.host(rank));
    // A failure on the ranks of one host fails on all ranks.
    AgreeOn(host, [&] {
      local_ = CreateCudaIpcGroup(*local_ranks_, device);
      staging_ = local_->Allocate(2 * slot_bytes_);
    });
    waits_ = !ReachOverNccl(options.wanted);
    if (waits_ && rail_ranks_ != nullptr) rail_ = CreateHostStagedGroup(*rail_ranks_, device);
    flat_ = CreateHostStagedGroup(host, device);
  }

  // Enqueued work uses the group's memory until then.
  ~HierarchicalGroup() override { done_.Synchronize(); }

  const char* backend() const override { return "hierarchical"; }
  int device() const override { return device_.index(); }

  void Enqueue(const Collective& collective) override {
    Check();
    const auto stream = static_cast<CUstream>(StreamOf(collective, host_.rank()));
    if (base::IsMessage(collective.kind)) return EnqueueMessage(collective);
    RefuseCapture(device_, collective, host_.rank(), backend());
    const gpu::DeviceScope scope(device_);
    if (last_stream_ != stream) done_.Delay(stream);
    if (HasSteps(collective.kind)) {
      AgreeOnCall(host_, collective);
      EnqueueSteps(collective, stream);
    } else {
      flat_->Enqueue(collective);
    }
    done_.Record(stream);
    last_stream_ = stream;
  }

  void Check() override {
    if (error_ == nullptr) error_ = FindError();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  std::unique_ptr<Memory> Allocate(uint64_t bytes) override {
    Check();
    return local_->Allocate(bytes);
  }

 private:
  static std::exception_ptr ErrorOf(DeviceGroup& group) {
    try {
      group.Check();
    } catch (const Error&) {
      return std::current_exception();
    }
    return nullptr;
  }

  std::exception_ptr FindError() {
    const std::exception_ptr within = ErrorOf(*local_);
    const std::exception_ptr across = rail_ == nullptr ? nullptr : ErrorOf(*rail_);
    if (within == nullptr || across == nullptr) return within == nullptr ? across : within;
    const Error first = ThrownAs(within), second = ThrownAs(across);
    return std::make_exception_ptr(
        Error(first.code(), Text(first.what(), " (", second.what(), ")")));
  }

  static Error ThrownAs(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& thrown) {
      return thrown;
    }
  }

  // Connects the ranks of every rail with NCCL. Returns false, on all ranks, if any rail fails.
  bool ReachOverNccl(bool wanted) {
    if (!NcclRefusal([&] { return wanted ? "" : ProbeNccl(*rail_ranks_, device_); }).empty())
      return false;
    const std::string refusal = NcclRefusal([&]() -> std::string {
      rail_ = CreateNcclGroup(*rail_ranks_, device_);
      return "";
    });
    if (!refusal.empty()) rail_ = nullptr;
    return refusal.empty();
  }

  std::string NcclRefusal(const std::function<std::string()>& ask) {
    return FirstObjection(host_, [&] { return rail_ranks_ == nullptr ? "" : ask(); });
  }

  // ---- messages

  void EnqueueMessage(const Collective& message) {
    if (hosts_.host(message.root) != hosts_.host(host_.rank())) return flat_->Enqueue(message);
    Collective local = message;
    local.root = hosts_.local_rank(message.root);
    local_->Enqueue(local);
  }

  // ---- steps

  void EnqueueSteps(const Collective& whole, CUstream stream) {
    const TwoLevels levels = {
        .hosts = hosts_,
        .rank = host_.rank(),
        .chunk_bytes = chunk_bytes_,
        .staging = static_cast<char*>(staging_->data()),
    };
    const std::vector<Step> steps = PlanSteps(levels, whole);
    const CUstream crossing = steps.size() > 1 && !waits_ ? crossing_.get() : stream;
    const auto go_up = [&](size_t k) {
      EnqueueWithin(steps[k].up, whole, stream);
      if (crossing != stream) up_[k % 2].Record(stream);
    };
    go_up(0);
    for (size_t k = 0; k < steps.size(); ++k) {
      if (k + 1 < steps.size()) go_up(k + 1);
      if (!steps[k].across.empty()) {
        if (crossing != stream) up_[k % 2].Delay(crossing);
        for (const Collective& part : steps[k].across) rail_->Enqueue(In(crossing, part));
        if (crossing != stream) {
          crossed_.Record(crossing);
          crossed_.Delay(stream);
        }
      }
      EnqueueWithin(steps[k].down, whole, stream);
    }
  }

  void EnqueueWithin(
      const std::vector<Collective>& parts, const Collective& whole, CUstream stream) {
    for (const Collective& part : parts) local_->EnqueueStep(In(stream, part), whole);
  }

  Collective In(CUstream stream, Collective part) const {
    part.input.device = part.output.device = device_.index();
    part.input.stream = part.output.stream = stream;
    return part;
  }

  Communicator& host_;
  const gpu::Device& device_;
  const HostMap hosts_;
  const uint64_t chunk_bytes_, slot_bytes_;
  std::unique_ptr<Communicator> local_ranks_;
  std::unique_ptr<Communicator> rail_ranks_;  // null on ranks without a rail
  std::unique_ptr<HostGroup> local_;
  std::unique_ptr<DeviceGroup> rail_;  // null on ranks without a rail
  std::unique_ptr<DeviceGroup> flat_;  // all ranks
  bool waits_ = false;                 // the rails use host_staged
  std::unique_ptr<Memory> staging_;    // two slots
  gpu::Stream crossing_;
  gpu::Event up_[2];  // after the way up of a step, and of the next step
  gpu::Event crossed_;
  gpu::Event done_;  // after the last call
  CUstream last_stream_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace

std::string WhyNotHierarchical(Communicator& host, const gpu::Device& device, bool wanted) {
  const HostMap hosts = HostsOf(host);
  if (hosts.host_count() == 1)
    return wanted ? WhyNotCudaIpc(host, device, wanted) : "the ranks share a host";
  if (hosts.host_count() == hosts.size()) return wanted ? "" : "no two ranks share a host";
  for (int h = 0; h < hosts.host_count(); ++h) {
    if (hosts.local_size(h) > kMostRanks)
      return Text("a host has more than ", kMostRanks, " ranks");
  }
  if (!wanted) {
    std::string turns = WhyNotAtOnce(host, device);
    if (!turns.empty()) return turns;
  }
  return WhyNotExported(device);
}

std::unique_ptr<DeviceGroup> CreateHierarchicalGroup(
    Communicator& host, const gpu::Device& device, const HierarchicalOptions& options) {
  const HostMap hosts = HostsOf(host);
  if (hosts.host_count() == 1) return CreateCudaIpcGroup(host, device);
  if (hosts.host_count() < hosts.size())
    return std::make_unique<HierarchicalGroup>(host, device, options);
  const std::string refusal = FirstObjection(host, [&] { return ProbeNccl(host, device); });
  return refusal.empty() ? CreateNcclGroup(host, device) : CreateHostStagedGroup(host, device);
}

}  // namespace dtrun::ops::cuda
