#include "models/data/distribute.h"

#include <dtrun/error.h>
#include <dtrun/objects.h>

#include <algorithm>
#include <optional>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "models/data/batch_maker.h"
#include "models/data/pipeline_node.h"
#include "models/data/sampling.h"
#include "models/message_text.h"

// Each rank computes a Proposal: its error, or the description of its pipeline and its batch sizes.
// Exchange sends the proposals of all ranks to all ranks. So all ranks throw the same error, or all
// ranks know the size of every batch of every rank.

namespace dtrun::models {
namespace {

// A rank's description of its pipeline for the other ranks.
struct Proposal {
  int code = 0;          // of the error
  std::string error;     // empty if there is none
  std::string identity;  // must be the same on all ranks
  std::string examples;  // names the examples that the rank reads
  std::vector<uint64_t> sizes;
};

std::vector<std::string> Pack(const Proposal& p) {
  std::string sizes;
  for (const uint64_t number : p.sizes) sizes += Text(number, " ");
  return {Text(p.code), p.error, p.identity, p.examples, sizes};
}

Proposal Unpack(const std::vector<std::string>& strings) {
  Proposal p{std::stoi(strings[0]), strings[1], strings[2], strings[3], {}};
  std::istringstream sizes(strings[4]);
  for (uint64_t number; sizes >> number;) p.sizes.push_back(number);
  return p;
}

// Throws the first rank's error on all ranks. The error names the rank, unless all ranks have it.
void ThrowFirstError(const std::vector<Proposal>& of_ranks) {
  const auto failed = std::find_if(
      of_ranks.begin(), of_ranks.end(), [](const Proposal& p) { return !p.error.empty(); });
  if (failed == of_ranks.end()) return;
  const bool everywhere = std::all_of(of_ranks.begin(), of_ranks.end(), [&](const Proposal& p) {
    return p.error == failed->error;
  });
  const std::string whose = everywhere ? "" : Text("rank ", failed - of_ranks.begin(), ": ");
  throw Error(static_cast<ErrorCode>(failed->code), whose + failed->error);
}

void ThrowFirstDifference(const std::vector<Proposal>& of_ranks) {
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].identity == of_ranks[0].identity) continue;
    throw Error(
        ErrorCode::kMismatch, Text(
                                  "input pipelines differ: rank 0 has ", of_ranks[0].identity,
                                  ", rank ", rank, " has ", of_ranks[rank].identity));
  }
}

// Gathers the proposals of all ranks in one round. All ranks throw an exception of any `propose`.
template <typename Propose>
std::vector<Proposal> Exchange(Communicator& communicator, const Propose& propose) {
  Proposal mine;
  try {
    mine = propose();
  } catch (const Error& error) {
    mine = {static_cast<int>(error.code()), error.what(), "", "", {}};
  } catch (const std::exception& error) {
    mine = {static_cast<int>(ErrorCode::kInvalidArgument), error.what(), "", "", {}};
  }
  std::vector<Proposal> all;
  for (const std::vector<std::string>& strings : AllGatherStrings(communicator, Pack(mine)))
    all.push_back(Unpack(strings));
  ThrowFirstError(all);
  ThrowFirstDifference(all);
  return all;
}

Sharding ShardingOf(const Pipeline& pipeline, Sharding asked, int ranks) {
  if (asked != Sharding::kAuto) return asked;
  const uint64_t files = SourceOf(pipeline.node()).files();
  const bool by_file = files > 1 && files >= static_cast<uint64_t>(ranks);
  return by_file ? Sharding::kFile : Sharding::kData;
}

void CheckPossible(const Pipeline& pipeline, Sharding sharding, int ranks) {
  const uint64_t files = SourceOf(pipeline.node()).files(), p = static_cast<uint64_t>(ranks);
  if (pipeline.global_batch() < p) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "a global batch of ", pipeline.global_batch(),
            ": expected at least 1 example for each of the ", ranks, " ranks"));
  }
  if (sharding == Sharding::kFile && files < p) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "sharding by file: found ", files, files == 1 ? " file" : " files", " for ", ranks,
            " ranks, expected at least one each"));
  }
}

// The warning for ranks with the same examples under Sharding::kOff.
std::string WarningOf(const std::vector<Proposal>& of_ranks) {
  std::vector<std::string> examples;
  for (const Proposal& p : of_ranks) examples.push_back(p.examples);
  std::sort(examples.begin(), examples.end());
  if (std::adjacent_find(examples.begin(), examples.end()) == examples.end()) return "";
  return Text(
      "input: without sharding, several of the ", of_ranks.size(),
      " ranks see the same examples; give each rank its own, or shard by data");
}

uint64_t OwnBatch(uint64_t global_batch, int rank, int ranks) {
  return PartOf({0, global_batch}, rank, ranks).size();
}

}  // namespace

struct DistributedPipeline::Plan {
  ReadPlan read;
  uint64_t global_batch = 0, largest_local_batch = 0;
  Sharding sharding = Sharding::kData;
  std::string warning = {};

  // Only for ranks with separate streams.
  void TakeSizes(const std::vector<Proposal>& of_ranks) {
    read.batches = 0;
    for (const Proposal& p : of_ranks) {
      read.sizes.emplace_back(p.sizes);
      read.batches = std::max(read.batches, read.sizes.back().batches());
    }
    ExpectBatches(read.pipeline, read.batches);
    if (sharding == Sharding::kOff) warning = WarningOf(of_ranks);
  }
};

const char* NameOf(Sharding sharding) {
  switch (sharding) {
    case Sharding::kAuto: return "auto";
    case Sharding::kFile: return "file";
    case Sharding::kData: return "data";
    case Sharding::kOff: return "off";
  }
  return "unknown sharding";
}

DistributedPipeline::DistributedPipeline(
    Communicator& communicator, const Pipeline& pipeline, const DistributeOptions& options) {
  const int rank = communicator.rank(), ranks = communicator.size();
  const Sharding sharding = ShardingOf(pipeline, options.sharding, ranks);
  std::optional<ReadPlan> read;
  const std::vector<Proposal> all = Exchange(communicator, [&] {
    read = PlanAlone(pipeline);
    CheckPossible(pipeline, sharding, ranks);
    read->rank = rank;
    read->ranks = ranks;
    if (sharding != Sharding::kData)
      read->own_batch = OwnBatch(pipeline.global_batch(), rank, ranks);
    if (sharding == Sharding::kFile) read->files = {rank, ranks};
    Proposal mine;
    mine.identity = Text("sharding ", NameOf(sharding), ", ");
    mine.identity += sharding == Sharding::kOff ? Text("batch ", pipeline.global_batch())
                                                : pipeline.description();
    mine.examples = ExamplesOf(pipeline.node());
    if (read->own_batch > 0)
      mine.sizes = BatchSizes(pipeline.node(), read->files, read->own_batch).Pack();
    return mine;
  });
  auto plan = std::make_shared<Plan>(Plan{.read = std::move(*read)});
  plan->read.compute_threads = options.compute_threads;
  plan->sharding = sharding;
  plan->global_batch = pipeline.global_batch();
  plan->largest_local_batch = (plan->global_batch - 1) / static_cast<uint64_t>(ranks) + 1;
  if (plan->read.own_batch > 0) plan->TakeSizes(all);
  plan_ = std::move(plan);
}

DistributedPipeline::DistributedPipeline(
    Communicator& communicator, const PipelineFunction& function,
    const DistributeOptions& options) {
  std::optional<ReadPlan> read;
  const std::vector<Proposal> all = Exchange(communicator, [&] {
    read = PlanAlone(function({communicator.rank(), communicator.size()}));
    const Pipeline& pipeline = read->pipeline;
    read->rank = communicator.rank();
    read->ranks = communicator.size();
    read->own_batch = pipeline.global_batch();
    const ExampleShape& shape = pipeline.shape();
    Proposal mine;
    mine.identity = Text("examples of ", shape.height, "x", shape.width, "x", shape.channels);
    mine.examples = ExamplesOf(pipeline.node());
    mine.sizes = BatchSizes(pipeline.node(), read->files, read->own_batch).Pack();
    return mine;
  });
  auto plan = std::make_shared<Plan>(Plan{.read = std::move(*read)});
  plan->read.compute_threads = options.compute_threads;
  plan->sharding = Sharding::kOff;
  plan->TakeSizes(all);
  for (const BatchSizes& sizes : plan->read.sizes) plan->global_batch += sizes.full_batch();
  plan->largest_local_batch = plan->read.own_batch;
  plan_ = std::move(plan);
}

Iterator DistributedPipeline::Begin(const Position& start) const {
  return Iterator(std::make_unique<Iterator::State>(plan_->read, start));
}

uint64_t DistributedPipeline::batches() const { return plan_->read.batches; }
uint64_t DistributedPipeline::global_batch() const { return plan_->global_batch; }
uint64_t DistributedPipeline::largest_local_batch() const { return plan_->largest_local_batch; }
const ExampleShape& DistributedPipeline::shape() const { return plan_->read.pipeline.shape(); }
Sharding DistributedPipeline::sharding() const { return plan_->sharding; }
const std::string& DistributedPipeline::warning() const { return plan_->warning; }

namespace {

Sharding ShardingOf(InputSplit split) {
  switch (split) {
    case InputSplit::kAuto: return Sharding::kAuto;
    case InputSplit::kFile: return Sharding::kFile;
    case InputSplit::kData: return Sharding::kData;
    case InputSplit::kOff: return Sharding::kOff;
  }
  return Sharding::kAuto;
}

}  // namespace

DistributedPipelineDataset::DistributedPipelineDataset(const DistributedPipeline& pipeline)
    : batches_(pipeline.batches() == kInfinite ? 0 : pipeline.batches()),
      largest_(pipeline.largest_local_batch()),
      iterator_(pipeline.Begin()) {}

// If `epoch` follows the finished epoch, Seek would discard the batches that are made ahead.
void DistributedPipelineDataset::StartEpoch(uint64_t epoch, uint64_t first_batch) {
  const Position& at = iterator_.position();
  if (batches_ > 0 && at.batch == batches_ && at.epoch + 1 == epoch) iterator_.Next();
  const Position wanted{epoch, first_batch};
  if (!(iterator_.position() == wanted)) iterator_.Seek(wanted);
}

bool DistributedPipelineDataset::Next(DistributedBatch& batch) {
  const Batch* next = iterator_.Next();
  if (next == nullptr) return false;
  batch = {};
  batch.examples = next->size();
  batch.first_position = next->first_position();
  batch.global_batch = next->global_size();
  const std::span<const int32_t> labels = next->labels();
  batch.targets = Buffer(const_cast<int32_t*>(labels.data()), labels.size(), DType::kI32);
  batch.example_numbers = next->numbers().data();
  batch.write_inputs = [next](uint64_t first, uint64_t count, float* inputs) {
    next->CopyInputs(first, count, inputs);
  };
  return true;
}

std::unique_ptr<DistributedDataset> PipelineDataset::Distribute(
    Communicator& replicas, InputSplit split) const {
  return std::make_unique<DistributedPipelineDataset>(DistributedPipeline(
      replicas, pipeline_, {.sharding = ShardingOf(split), .compute_threads = compute_threads_}));
}

std::unique_ptr<DistributedDataset> PipelineDataset::DistributePerReplica(
    Communicator& replicas) const {
  return std::make_unique<DistributedPipelineDataset>(DistributedPipeline(
      replicas, [this](const models::InputContext&) { return pipeline_; },
      {.compute_threads = compute_threads_}));
}

}  // namespace dtrun::models
