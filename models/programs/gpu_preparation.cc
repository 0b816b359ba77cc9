// The ranks choose a device together. Each rank looks for its GPU, and AgreeOn combines the
// verdicts. If any rank has no usable GPU, all ranks use the CPU with `auto`, and fail if a GPU was
// requested.

#include <dtrun/device_choice.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "models/gpu/cuda_device.h"
#include "models/message_text.h"
#include "models/optim/by_name.h"
#include "models/programs/rank_main.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"

namespace dtrun::models {

/// The GPUs in a strategy's name: "mirrored:cuda:0,cuda:1". The trainer takes this rank's GPU from
/// the list, because ranks may share GPUs, and makes the strategy with it.
struct NamedGpus {
  std::string spec, strategy;   ///< as given, and "mirrored"
  std::vector<Device> devices;  ///< by local rank; empty: no list, or CPUs only
  bool any = false;             ///< "gpu:*": one for each rank

  explicit operator bool() const { return any || !devices.empty(); }
};

/// The GPUs in the name of a strategy. Empty for lists without a GPU. Throws Error kInvalidArgument
/// for a list of GPUs and other devices.
NamedGpus GpusNamedIn(const std::string& strategy);

/// The input of ChooseDevice on this rank, without the existing GPUs. Throws Error kInvalidArgument
/// if the number of named GPUs differs from the number of ranks on this host.
DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size);

namespace {

DeviceChoiceInput WishOf(const std::string& device, const Context& job) {
  DeviceChoiceInput input;
  input.wish = device;
  input.local_rank = job.local_rank();
  input.local_size = job.local_size();
  return input;
}

// This rank's own verdict. kSuccess means that a GPU exists.
Verdict LookForGpu(
    const TrainOptions& options, const NamedGpus& named, const Context& job, PreparedGpu& gpu) {
  try {
    DeviceChoiceInput input =
        named ? WishOf(named, job.local_rank(), job.local_size()) : WishOf(options.device, job);
    input.device_count = CudaDeviceCount(&input.why_no_gpu);
    input.share_gpus = options.share_gpus;
    const DeviceChoice choice = ChooseDevice(input);
    if (choice.device.kind == DeviceKind::kCpu) return {kUsage, input.why_no_gpu};
    gpu.index = choice.device.index;
    gpu.sharers = choice.sharers;
  } catch (const Error& error) {
    if (!named) return {kUsage, Text("--", error.what())};
    const bool missing = error.code() == ErrorCode::kUnavailable;
    return {
        kUsage, Text("--strategy ", named.spec, ": ", error.what(), missing ? "; use cpu" : "")};
  }
  return {};
}

// All ranks get the same verdict.
Verdict FindNamedGpus(const TrainOptions& options, NamedGpus& named) {
  try {
    named = GpusNamedIn(options.strategy);
  } catch (const Error& error) {
    return {kUsage, Text("--strategy ", options.strategy, ": ", error.what())};
  }
  if (!named || options.device == "auto") return {};
  return {
      kUsage, Text(
                  "--device ", options.device, ": given with --strategy ", options.strategy,
                  ", which names GPUs; expected one of the two")};
}

bool AnyRank(Context& job, bool mine) {
  int32_t any = mine ? 1 : 0;
  job.world().AllReduce(Buffer(&any, 1), ReduceOp::kMax);
  return any != 0;
}

// The largest batch that fits on every rank: the minimum over the ranks. The network, its optimizer
// and its gradients need memory.
Verdict FindLargestBatch(Context& job, Preparation& ready) {
  uint64_t largest = 0;
  Verdict verdict;
  struct Trial {
    std::unique_ptr<Sequential> model;
    std::unique_ptr<RateOptimizer> optimizer;
    std::vector<std::shared_ptr<void>> gradients;
  };
  try {
    const auto device = MakeChosenDevice(job, ready);
    const uint64_t most =
        std::max<uint64_t>(ready.data->info.train_examples / static_cast<uint64_t>(job.size()), 1);
    largest = LargestGpuBatch(ready.gpu.index, ready.gpu.sharers, most, [&](uint64_t examples) {
      const auto trial = std::make_shared<Trial>();
      trial->model = MakeModel(ready.data->info, examples, ready.options, *device);
      std::vector<Parameter>& parameters = trial->model->parameters();
      trial->optimizer = MakeOptimizer(
          ready.options.optimizer, parameters, trial->model->parameter_shapes(),
          ready.options.settings, *device);
      for (const Parameter& parameter : parameters)
        device->Allocate(parameter.value.count, DType::kF32, trial->gradients.emplace_back());
      return trial;
    });
  } catch (const Error& error) {
    verdict = {kUsage, Text("--batch-size auto: ", error.what())};
  }
  job.world().AllReduce(Buffer(&largest, 1), ReduceOp::kMin);
  ready.options.batch_size = largest;
  return AgreeOn(verdict, job);
}

}  // namespace

// The sums of --deterministic and --adasum, and central storage, are in host memory.
std::unique_ptr<ComputeDevice> MakeChosenDevice(const Context& job, const Preparation& ready) {
  const TrainOptions& options = ready.options;
  if (!ready.on_gpu()) return MakeCpuDevice();
  CudaDeviceOptions gpu;
  gpu.index = ready.gpu.index;
  gpu.tf32 = options.tf32;
  gpu.fastest_algorithms = !options.first_algorithms;
  const std::string memory = job.option("gpu_memory_bytes").value_or("all");
  if (memory != "all") gpu.memory_bytes = std::stoull(memory);
  const bool in_host_memory =
      options.deterministic > 0 || options.adasum || options.strategy == "central_storage";
  if (in_host_memory) gpu.parameters = ParameterMemory::kHost;
  return MakeCudaDevice(gpu);
}

std::unique_ptr<Strategy> MakeChosenStrategy(Context& job, const Preparation& ready) {
  if (!ready.on_gpu()) return MakeNamedStrategy(job, ready.options.strategy);
  return MakeNamedStrategy(job, ready.options.strategy, Device{DeviceKind::kCuda, ready.gpu.index});
}

void UseCpu(const TrainOptions& given, const std::string& why_not, Preparation& ready) {
  ready.options = given;
  ready.options.device = "cpu";
  ready.options.largest_batch = false;
  ready.gpu = {};
  ready.gpu.why_not = why_not;
}

void ChooseDeviceTogether(Context& job, Preparation& ready) {
  NamedGpus named;
  ready.verdict = AgreeOn(FindNamedGpus(ready.options, named), job);
  if (ready.verdict.exit_code != kSuccess) return;
  if (named) ready.options.strategy = named.strategy;
  const TrainOptions given = ready.options;
  const bool automatic = given.device == "auto" && !named;
  if (given.device == "cpu") return UseCpu(given, "", ready);
  ready.gpu.asked_for = !automatic;
  const Verdict mine = LookForGpu(given, named, job, ready.gpu);
  const bool exists = AnyRank(job, mine.exit_code == kSuccess);
  const Verdict all = AgreeOn(mine, job);
  if (all.exit_code != kSuccess && automatic)
    return UseCpu(given, exists ? all.problem : "", ready);
  if (all.exit_code != kSuccess) {
    ready.verdict = all;
    return;
  }
  ready.gpu.shared_somewhere = AnyRank(job, ready.gpu.sharers > 1);
  ready.options.device = "cuda";
  if (!given.largest_batch) return;
  const Verdict found = FindLargestBatch(job, ready);
  if (found.exit_code == kSuccess) return;
  if (automatic) return UseCpu(given, found.problem, ready);
  ready.verdict = found;
}

namespace {

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

bool IsGpu(const Device& device) { return device.kind == DeviceKind::kCuda; }

}  // namespace

NamedGpus GpusNamedIn(const std::string& strategy) {
  const size_t colon = strategy.find(':');
  NamedGpus gpus{strategy, strategy.substr(0, colon), {}};
  if (colon == std::string::npos) return gpus;
  const std::vector<std::string> names = Split(strategy.substr(colon + 1));
  gpus.any = dtrun::IsAnyGpu(names[0]);
  // The strategy itself refuses several devices.
  const bool takes_one = gpus.strategy == "one_device" || gpus.strategy == "default";
  if (gpus.any || (takes_one && names.size() > 1)) return gpus;
  for (const std::string& name : names) gpus.devices.push_back(ParseDevice(name));
  const auto count = std::count_if(gpus.devices.begin(), gpus.devices.end(), IsGpu);
  if (count == 0) gpus.devices.clear();
  if (static_cast<size_t>(count) == gpus.devices.size()) return gpus;
  throw Error(
      ErrorCode::kInvalidArgument,
      "found GPUs and cpu; expected GPUs for all ranks, or cpu for all ranks");
}

DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size) {
  DeviceChoiceInput input;
  input.local_rank = local_rank;
  input.local_size = local_size;
  input.wish = "cuda";
  if (gpus.any) return input;
  const size_t named = gpus.devices.size();
  const bool one = gpus.strategy == "one_device" || gpus.strategy == "default";
  if (!one && named != static_cast<size_t>(local_size)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "found ", named, named == 1 ? " device" : " devices", " and ", local_size,
            local_size == 1 ? " rank" : " ranks",
            " on a host; expected one for each rank (dtrun -np ", named, ")"));
  }
  const Device& mine = gpus.devices[one ? 0 : static_cast<size_t>(local_rank)];
  input.wish = mine.name();
  input.local_size = static_cast<int>(std::count(gpus.devices.begin(), gpus.devices.end(), mine));
  return input;
}

}  // namespace dtrun::models
