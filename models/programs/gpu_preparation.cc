// The ranks choose a device together. Each rank looks for its GPU, and AgreeOn combines the
// verdicts. If any rank has no usable GPU, all ranks use the CPU with `auto`, and fail if a GPU was
// requested.

#include <dtrun/device_choice.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "models/data/sampling.h"
#include "models/message_text.h"
#include "models/optim/adam.h"
#include "models/optim/sgd.h"
#include "models/programs/training.h"
#include "models/programs/training_options.h"

namespace dtrun::models {

/// The GPUs in a strategy's name: "mirrored:cuda:0,cuda:1". A strategy has its variables in host
/// memory. So the trainer takes these GPUs and makes the strategy without devices.
struct NamedGpus {
  std::string spec, strategy;   ///< as given, and "mirrored"
  std::vector<Device> devices;  ///< by local rank; empty: no list, or CPUs only

  explicit operator bool() const { return !devices.empty(); }
};

/// The GPUs in the name of one_device or mirrored. Empty for other strategies and for lists without
/// a GPU. Throws Error kInvalidArgument for a list of GPUs and other devices.
NamedGpus GpusNamedIn(const std::string& strategy);

/// The input of ChooseDevice on this rank, without the existing GPUs. Throws Error kInvalidArgument
/// if the number of named GPUs differs from the number of ranks on this host.
DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size);

namespace {

DType DtypeOf(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  return name == "f16" ? DType::kF16 : DType::kF32;
}

GpuOptimizer OptimizerOf(const TrainOptions& options) {
  const OptimizerSettings& s = options.settings;
  const AdamOptions adam;
  const SgdOptions sgd;
  GpuOptimizer optimizer;
  optimizer.kind =
      options.optimizer == "sgd" ? GpuOptimizer::Kind::kSgd : GpuOptimizer::Kind::kAdam;
  optimizer.beta1 = s.beta1.value_or(adam.beta1);
  optimizer.beta2 = s.beta2.value_or(adam.beta2);
  optimizer.epsilon = s.epsilon.value_or(adam.epsilon);
  optimizer.momentum = s.momentum.value_or(sgd.momentum);
  optimizer.weight_decay = s.weight_decay.value_or(sgd.weight_decay);
  optimizer.nesterov = s.nesterov.value_or(sgd.nesterov);
  return optimizer;
}

GpuOptions GpuOptionsOf(const Context& job, const Preparation& ready) {
  const TrainOptions& options = ready.options;
  GpuOptions gpu;
  gpu.device = ready.gpu.index;
  gpu.sharers = ready.gpu.sharers;
  gpu.dtype = DtypeOf(options.dtype);
  gpu.tf32 = options.tf32;
  gpu.first_algorithms = options.first_algorithms;
  gpu.seed = options.seed;
  gpu.optimizer = OptimizerOf(options);
  const std::string memory = job.option("gpu_memory_bytes").value_or("all");
  if (memory != "all") gpu.memory_bytes = std::stoull(memory);
  const auto ranks = static_cast<uint64_t>(job.size());
  gpu.rows = (ready.global_batch + ranks - 1) / ranks;
  gpu.steps_per_epoch = StepsPerEpoch(options, ready.data->info.train_examples, job.size());
  return gpu;
}

DeviceChoiceInput WishOf(const std::string& device, const Context& job) {
  DeviceChoiceInput input;
  input.wish = device;
  input.local_rank = job.local_rank();
  input.local_size = job.local_size();
  return input;
}

// This rank's own verdict. kSuccess means that a GPU exists. A problem with kSuccess is an obstacle
// to its use.
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
  return {kSuccess, GpuObstacle(options)};
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

// The largest batch that fits on every rank: the minimum over the ranks.
Verdict FindLargestBatch(Context& job, Preparation& ready) {
  uint64_t largest = 0;
  Verdict verdict;
  try {
    const auto model = MakeModel(ready.data->info, 1, ready.options);
    const uint64_t most =
        std::max<uint64_t>(ready.data->info.train_examples / static_cast<uint64_t>(job.size()), 1);
    const uint64_t sets[] = {ready.data->info.train_examples, ready.data->info.test_examples};
    largest = LargestGpuBatch(*model, GpuOptionsOf(job, ready), sets, most);
  } catch (const Error& error) {
    verdict = {kUsage, Text("--batch-size auto: ", error.what())};
  }
  job.world().AllReduce(Buffer(&largest, 1), ReduceOp::kMin);
  ready.options.batch_size = largest;
  return AgreeOn(verdict, job);
}

Verdict MakeOwnReplica(Context& job, Preparation& ready) {
  try {
    PreparedGpu& gpu = ready.gpu;
    gpu.replica = GpuReplica::Make(*ready.model, job.world(), GpuOptionsOf(job, ready));
    gpu.train = std::make_unique<ImageBytes>(ready.data->train);
    gpu.test = std::make_unique<ImageBytes>(ready.data->test);
    gpu.streams_training = !gpu.replica->LoadTrainingData(gpu.train->view());
    gpu.streams_test = !gpu.replica->LoadTestData(gpu.test->view());
  } catch (const Error& error) {
    return {kUsage, Text("--device ", ready.options.device, ": ", error.what())};
  }
  return {};
}

}  // namespace

std::string GpuObstacle(const TrainOptions& options) {
  const auto refused = [](const std::string& what, const std::string& expected) {
    return Text(what, ": not on a GPU; expected ", expected, ", or --device cpu");
  };
  if (options.adasum) return refused("--adasum", "sums of gradients");
  if (options.deterministic > 0) return refused("--deterministic", "no --deterministic");
  if (options.optimizer != "adam" && options.optimizer != "sgd")
    return refused("--optimizer " + options.optimizer, "adam or sgd");
  const char* const mirrored[] = {"multi_worker_mirrored", "mirrored", "one_device"};
  if (std::find(std::begin(mirrored), std::end(mirrored), options.strategy) == std::end(mirrored))
    return refused("--strategy " + options.strategy, "multi_worker_mirrored or mirrored");
  return "";
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
  Verdict mine = LookForGpu(given, named, job, ready.gpu);
  const bool exists = AnyRank(job, mine.exit_code == kSuccess);
  // An obstacle counts as a failure, also for `auto`, which shows the reason.
  if (mine.exit_code == kSuccess && !mine.problem.empty()) mine.exit_code = kUsage;
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

Verdict MakeGpuReplica(Context& job, Preparation& ready) {
  const Verdict all = AgreeOn(MakeOwnReplica(job, ready), job);
  if (all.exit_code != kSuccess) {
    ready.gpu.replica.reset();
    return all;
  }
  ready.gpu.streams_training = AnyRank(job, ready.gpu.streams_training);
  ready.gpu.streams_test = AnyRank(job, ready.gpu.streams_test);
  return all;
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
  const bool takes_gpus = gpus.strategy == "one_device" || gpus.strategy == "mirrored";
  if (!takes_gpus || colon == std::string::npos) return gpus;
  const std::vector<std::string> names = Split(strategy.substr(colon + 1));
  // The strategy itself refuses several devices.
  if (gpus.strategy == "one_device" && names.size() > 1) return gpus;
  for (const std::string& name : names) gpus.devices.push_back(ParseDevice(name));
  const auto count = std::count_if(gpus.devices.begin(), gpus.devices.end(), IsGpu);
  if (count == 0) gpus.devices.clear();
  if (static_cast<size_t>(count) == gpus.devices.size()) return gpus;
  throw Error(
      ErrorCode::kInvalidArgument,
      "found GPUs and cpu; expected GPUs for all ranks, or cpu for all ranks");
}

DeviceChoiceInput WishOf(const NamedGpus& gpus, int local_rank, int local_size) {
  const size_t named = gpus.devices.size();
  const bool one = gpus.strategy == "one_device";
  if (!one && named != static_cast<size_t>(local_size)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "found ", named, named == 1 ? " device" : " devices", " and ", local_size,
            local_size == 1 ? " rank" : " ranks",
            " on a host; expected one for each rank (dtrun -np ", named, ")"));
  }
  const Device& mine = gpus.devices[one ? 0 : static_cast<size_t>(local_rank)];
  DeviceChoiceInput input;
  input.wish = mine.name();
  input.local_rank = local_rank;
  input.local_size = static_cast<int>(std::count(gpus.devices.begin(), gpus.devices.end(), mine));
  return input;
}

}  // namespace dtrun::models
