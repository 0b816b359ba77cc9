// Gradients lie in one block and parameters in another, with the same buckets. Every rank owns a
// share of each bucket. If all ranks map these blocks, a step is one pass over memory per bucket
// (ReduceUpdateGather), and buckets are as large as possible. Otherwise, the reduce_scatter of a
// bucket starts during the backward pass, when the bucket and all buckets before it are marked. The
// step waits for the reductions, updates this rank's shares, and starts the all_gathers. The
// buckets of the first layers come first, because the next forward pass needs them first.
//
// A caller that needs norms before the update calls Reduce first. Then the step is two passes.
//
// A step can also copy the state that it makes, slice by slice. It begins to when all ranks have
// begun the step.
//
// On a GPU, reductions run in a second stream, and updates in the stream of the parameters. A step
// is never one pass.
//
// With one copy per host on several hosts, every rank gets the whole reduction by an all_reduce.
// The ranks of each host update their host's copy together. The update is computed once per host
// from the same bits, so no value crosses the wire.

#include "runtime/step/parameter_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/reduce/reduce.h"
#include "runtime/device/block_device.h"
#include "runtime/job/rank_agreement.h"
#include "runtime/step/owned_share.h"

namespace dtrun::runtime {
namespace {

using base::Text;

std::vector<GradientSpec> SpecsOf(const std::vector<ShardedParameter>& parameters) {
  std::vector<GradientSpec> specs;
  for (const ShardedParameter& parameter : parameters)
    specs.push_back({parameter.name, parameter.value.count, parameter.value.dtype});
  return specs;
}

std::vector<Buffer> ValuesOf(const std::vector<ShardedParameter>& parameters) {
  std::vector<Buffer> values;
  for (const ShardedParameter& parameter : parameters) values.push_back(parameter.value);
  return values;
}

// By rank: the first rank on the same host.
std::vector<int> HostsOf(const ops::Communicator& communicator) {
  const std::vector<std::string>& names = communicator.members().hosts;
  std::vector<int> hosts(static_cast<size_t>(communicator.size()));
  for (size_t rank = 0; rank < names.size(); ++rank)
    hosts[rank] =
        static_cast<int>(std::find(names.begin(), names.end(), names[rank]) - names.begin());
  return hosts;
}

const base::Clock& SteadyClock() {
  static const base::SteadyClock steady;
  return steady;
}

}  // namespace

// --- the plan and the memory --------------------------------------------------------------------

ParameterShards::ParameterShards(
    ops::Communicator& communicator, std::vector<ShardedParameter> parameters,
    ShardSettings settings)
    : communicator_(communicator.Duplicate()),
      parameters_(std::move(parameters)),
      settings_(std::move(settings)),
      meter_(SteadyClock()) {
  CheckParameters();
  AgreeOnPlan();
  if (on_gpu()) streams_ = MakeDeviceGradients(place_.device, place_.stream);
  if (settings_.one_copy) JoinHost();
  uint64_t bucket_bytes = is_fused() ? UINT64_MAX : settings_.bucket_bytes;
  if (bucket_bytes == 0) bucket_bytes = AutoBucketBytes(SpecsOf(parameters_), false);
  plan_ = PlanShards(SpecsOf(parameters_), bucket_bytes, owners().size());
  const uint64_t bytes = plan_.layout.block_bytes;
  gradients_ = Allocate(bytes);
  if (settings_.one_copy) {
    CheckHost();
    values_ = owners().size() == 1 ? ops::AllocatePrivate(bytes) : owners().AllocateShared(bytes);
    TakeValuesTogether();
    ReleasePages(ValuesOf(parameters_));
  } else {
    values_ = Allocate(bytes);
    TakeValues();
  }
  AllocateState();
  FindOwnShares();
  gathers_.resize(bucket_count());
  Reset();
}

ParameterShards::~ParameterShards() {
  const auto under_way = [](const std::vector<ops::Work>& works) {
    return std::any_of(works.begin(), works.end(), [](const ops::Work& work) {
      try {
        return !work.Done();
      } catch (const Error&) {
        return true;  // given up: its peers may still write
      }
    });
  };
  // If a step is not complete, for example after an exception, the process keeps the memory.
  const bool waits = streams_ == nullptr || HasSynchronized();
  if (!waits || under_way(reductions_)) ops::Keep(std::move(gradients_));
  if (!waits || under_way(gathers_)) ops::Keep(std::move(values_));
}

// Waits for the GPU's work. False: that failed, so peers may still write.
bool ParameterShards::HasSynchronized() const {
  try {
    streams_->Synchronize();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<ops::Memory> ParameterShards::Allocate(uint64_t bytes) const {
  return on_gpu() ? communicator_->AllocateOnDevice(place_.device, bytes)
                  : communicator_->Allocate(bytes);
}

void ParameterShards::CheckParameters() {
  if (settings_.op != ReduceOp::kAverage && settings_.op != ReduceOp::kSum) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "gradients of sharded parameters are reduced by ",
                                         NameOf(settings_.op), "; expected average or sum"));
  }
  for (const ShardedParameter& parameter : parameters_) {
    const Buffer& value = parameter.value;
    const std::string name = Text("parameter '", parameter.name, "' ");
    if (SizeOf(value.dtype) == 0)
      throw Error(ErrorCode::kInvalidArgument, name + "has a dtype that does not exist");
    if (value.data == nullptr && value.count > 0)
      throw Error(ErrorCode::kInvalidArgument, Text(name, "has ", value.count, " values at null"));
    if (settings_.one_copy && value.device >= 0)
      throw Error(
          ErrorCode::kUnavailable,
          Text(name, "lies on GPU ", value.device, "; one_copy_per_host is for host memory"));
    if (&parameter == &parameters_[0]) place_ = value;
    if (value.device != place_.device || value.stream != place_.stream)
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           name, "and parameter '", parameters_[0].name,
                                           "' lie on different devices or streams; expected one"));
  }
}

void ParameterShards::JoinHost() {
  if (communicator_->members().SharesHost()) return;
  const std::vector<int> hosts = HostsOf(*communicator_);
  const int mine = hosts[static_cast<size_t>(communicator_->rank())];
  for (int rank = 0; rank < communicator_->size(); ++rank)
    if (hosts[static_cast<size_t>(rank)] == mine) host_ranks_.push_back(rank);
  host_ = communicator_->Split(mine, communicator_->rank());
}

// Throws on all ranks if the check fails on any rank, because hosts may differ.
void ParameterShards::CheckHost() {
  const bool shares = owners().fuses_updates() || owners().size() == 1;
  uint8_t fails = shares ? 0 : 1;
  if (host_) communicator_->AllReduce(Buffer(&fails, 1), ReduceOp::kMax);
  if (fails == 0) return;
  throw Error(
      ErrorCode::kUnavailable,
      Text(
          "one_copy_per_host: these ranks are connected by ", communicator_->backend(),
          "; expected shm between ranks that share a host"));
}

void ParameterShards::AgreeOnPlan() {
  std::vector<std::string> lines = {Text(
      NameOf(settings_.op), " in buckets of ",
      settings_.bucket_bytes == 0 ? "automatic size" : Text(settings_.bucket_bytes, " bytes"), ", ",
      settings_.one_copy ? "one copy per host" : "a copy per rank", on_gpu() ? ", on GPUs" : "",
      ", state of")};
  for (const auto& slot : settings_.slots)
    lines[0] += Text(" ", slot ? NameOf(*slot) : "the parameter's dtype");
  if (settings_.slots.empty()) lines[0] += " nothing";
  for (const GradientSpec& spec : SpecsOf(parameters_)) lines.push_back(Describe(spec));
  Agree(
      *communicator_,
      {"the sharded optimizer", "parameters in the sharded optimizer", "parameter", lines});
}

// Every rank writes its own block first, because pages are placed by first touch.
void ParameterShards::TakeValues() {
  for (size_t i = 0; i < size(); ++i) Copy(parameters_[i].value, value(i));
  for (size_t b = 0; b < bucket_count(); ++b) communicator_->Broadcast(InBucket(*values_, b), 0);
}

// Rank 0 sends its values to the first rank of every host. That rank scatters them, so that every
// rank writes its own share.
void ParameterShards::TakeValuesTogether() {
  const bool first = own_rank() == 0;
  const std::unique_ptr<ops::Memory> packed =
      ops::AllocatePrivate(first ? plan_.layout.block_bytes : 0);
  for (size_t i = 0; communicator_->rank() == 0 && i < size(); ++i)
    if (parameters_[i].value.count > 0)
      std::memcpy(InBlock(*packed, i).data, parameters_[i].value.data, value(i).bytes());
  std::unique_ptr<ops::Communicator> firsts;
  if (host_) firsts = communicator_->Split(first ? 0 : -1, communicator_->rank());
  for (size_t b = 0; b < bucket_count(); ++b) {
    if (firsts) firsts->Broadcast(InBucket(*packed, b), 0);
    const ops::Range share = plan_.Share(b, own_rank());
    owners()
        .StartScatter(
            first ? InBucket(*packed, b) : Buffer(),
            InBucket(*values_, b).Slice(share.begin, share.count), 0, plan_.shares[b])
        .Wait();
  }
  owners().Barrier();
}

void ParameterShards::AllocateState() {
  uint64_t bytes = 0;
  for (const auto& slot : settings_.slots) {
    state_offsets_.emplace_back();
    for (size_t b = 0; b < bucket_count(); ++b) {
      state_offsets_.back().push_back(bytes);
      const uint64_t count = plan_.Share(b, own_rank()).count;
      const DType dtype = slot.value_or(plan_.layout.buckets[b].dtype);
      bytes += Aligned(count * SizeOf(dtype));
    }
  }
  state_ = on_gpu() ? Allocate(bytes) : ops::AllocatePrivate(bytes);
}

void ParameterShards::FindOwnShares() {
  for (size_t b = 0; b < bucket_count(); ++b) {
    const uint64_t element = SizeOf(plan_.layout.buckets[b].dtype);
    const ops::Range range = plan_.Share(b, own_rank());
    const auto own = [&](const ops::Memory& block) -> OwnedShare::Column {
      const Buffer bucket = InBucket(block, b);
      return {static_cast<char*>(bucket.data) + range.begin * element, element};
    };
    OwnedShare share{range, {}, own(*gradients_), own(*values_), {}};
    plan_.AppendSlices(b, range, share.slices);
    for (size_t s = 0; s < settings_.slots.size(); ++s) share.state.push_back(StateOf(s, b));
    own_.push_back(std::move(share));
  }
}

void ParameterShards::CheckIndex(size_t i) const {
  if (i < size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("parameter ", i, " does not exist; the optimizer has ", size()));
}

void ParameterShards::CheckSlot(size_t slot) const {
  if (slot < settings_.slots.size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("state slot ", slot, " does not exist; there are ", settings_.slots.size()));
}

Buffer ParameterShards::InBucket(const ops::Memory& block, size_t bucket) const {
  const Bucket& b = plan_.layout.buckets[bucket];
  return Placed(Buffer(static_cast<char*>(block.data()) + b.offset, b.count, b.dtype));
}

// A buffer in the place of the parameters.
Buffer ParameterShards::Placed(Buffer buffer) const {
  buffer.device = place_.device;
  buffer.stream = place_.stream;
  return buffer;
}

Buffer ParameterShards::InBlock(const ops::Memory& block, size_t i) const {
  const Buffer& value = parameters_[i].value;
  return Placed(
      Buffer(static_cast<char*>(block.data()) + plan_.layout.offsets[i], value.count, value.dtype));
}

Buffer ParameterShards::gradient(size_t i) const {
  CheckIndex(i);
  return InBlock(*gradients_, i);
}

Buffer ParameterShards::value(size_t i) const {
  CheckIndex(i);
  return InBlock(*values_, i);
}

// --- the step -----------------------------------------------------------------------------------

void ParameterShards::MarkReady(size_t i) {
  CheckIndex(i);
  if (ready_[i]) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "gradient ", i, " ", Describe(SpecsOf(parameters_)[i]),
            " was marked ready twice; call Step() before the next backward pass"));
  }
  ready_[i] = true;
  --missing_[plan_.layout.bucket_of[i]];
  if (!is_fused()) StartReadyBuckets();
}

void ParameterShards::StartReadyBuckets() {
  if (reductions_.empty() && (missing_.empty() || missing_[0] != 0)) return;
  const StepMeter::Scope timed(meter_);
  // A mark lies between two layers of the backward pass, a good moment to advance started buckets.
  if (!reductions_.empty()) reductions_.back().Test();
  while (reductions_.size() < bucket_count() && missing_[reductions_.size()] == 0) {
    const size_t b = reductions_.size();
    Buffer bucket = InBucket(*gradients_, b);
    if (on_gpu()) {
      streams_->BeginReduction();
      bucket.stream = streams_->reduction_stream();
    }
    if (host_) {
      reductions_.push_back(communicator_->StartAllReduce(bucket, settings_.op));
      continue;
    }
    const ops::Range share = plan_.Share(b, own_rank());
    reductions_.push_back(communicator_->StartReduceScatter(
        bucket, bucket.Slice(share.begin, share.count), settings_.op, {}, plan_.shares[b]));
  }
}

void ParameterShards::MarkTheRest() {
  for (size_t i = size(); i-- > 0;)
    if (!ready_[i]) MarkReady(i);
}

void ParameterShards::Reduce() {
  if (reduced_) return;
  MarkTheRest();
  const StepMeter::Scope timed(meter_);
  if (is_fused()) StartReadyBuckets();
  for (ops::Work& work : reductions_) work.Wait(meter_.lateness());
  if (on_gpu()) streams_->EndReductions();
  reduced_ = true;
}

void ParameterShards::SquaredNorms(double* gradients, double* values) {
  if (!reduced_)
    throw Error(
        ErrorCode::kInvalidArgument,
        "norms were requested before the reduction; complete the reduction first");
  std::vector<Buffer> own_gradients, own_values;
  for (size_t i = 0; i < size(); ++i) {
    const DType dtype = parameters_[i].value.dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64) {
      throw Error(
          ErrorCode::kInvalidArgument, Text(
                                           "norms of parameters: '", parameters_[i].name, "' is ",
                                           NameOf(dtype), "; expected f32 or f64"));
    }
    const ShardSlice own = plan_.Owned(i, own_rank());
    own_gradients.push_back(gradient(i).Slice(own.first, own.count));
    own_values.push_back(value(i).Slice(own.first, own.count));
  }
  std::vector<double> sums = runtime::SquaredNorms(own_gradients);
  if (values != nullptr)
    for (const double sum : runtime::SquaredNorms(own_values)) sums.push_back(sum);
  sums.resize(2 * size());
  const Buffer all(sums.data(), sums.size());
  if (host_) {
    // Hosts with different numbers of ranks round differently, so all ranks take the sums of rank
    // 0.
    host_->AllReduce(all, ReduceOp::kSum);
    communicator_->Broadcast(all, 0);
  } else {
    communicator_->StartAllReduce(all, ReduceOp::kSum).Wait(meter_.lateness());
  }
  std::copy_n(sums.begin(), size(), gradients);
  if (values != nullptr)
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(size()), size(), values);
}

void ParameterShards::CopyStateInNextStep(
    const std::vector<void*>& places, std::function<void()> begin) {
  begin_copies_ = nullptr;
  if (places.empty()) return;
  DealStateCopies(places, own_);
  begin_copies_ = std::move(begin);
}

void ParameterShards::Step(double factor, const SliceUpdate& update) {
  const std::function<void()> begin = std::exchange(begin_copies_, nullptr);
  const bool copies = begin != nullptr && !on_gpu();
  state_is_copied_ = false;
  StepShares(
      factor,
      [&](const OwnedShare& share) -> ops::ShareUpdate {
        return SliceCursor(share, update, copies);
      },
      copies ? begin : nullptr);
  if (copies) ops::FenceStores();
  state_is_copied_ = copies;
}

void ParameterShards::Step(double factor, const MomentumStep& step) {
  CheckMomentum(step);
  begin_copies_ = nullptr;
  state_is_copied_ = false;
  StepShares(factor, [&](const OwnedShare& share) -> ops::ShareUpdate {
    const MomentumUpdate update(share, step);
    return {ops::ShareUpdate::Piece(update), ops::ShareUpdate::Fused(update)};
  });
}

void ParameterShards::CheckMomentum(const MomentumStep& step) const {
  if (on_gpu())
    throw Error(
        ErrorCode::kUnavailable,
        base::Text(
            "a step with momentum: the parameters lie on GPU ", place_.device,
            "; expected host memory, or a step with slices"));
  const auto check = [](const std::string& what, DType found) {
    if (found == DType::kF32) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        base::Text("a step with momentum: ", what, " is ", NameOf(found), ", expected f32"));
  };
  if (settings_.slots.size() > 1 || (!step.frozen.empty() && step.frozen.size() != size())) {
    throw Error(
        ErrorCode::kInvalidArgument,
        base::Text(
            "a step with momentum: found ", settings_.slots.size(), " slots and ",
            step.frozen.size(), " frozen flags, expected at most 1 and none or ", size()));
  }
  for (size_t i = 0; i < size(); ++i) {
    check(base::Text("parameter '", parameters_[i].name, "'"), parameters_[i].value.dtype);
    if (!settings_.slots.empty())
      check(base::Text("the state of '", parameters_[i].name, "'"), SlotDType(0, i));
  }
}

// Only these types are multiplied on a GPU.
void ParameterShards::CheckScalable() const {
  for (const ShardedParameter& parameter : parameters_)
    if (parameter.value.dtype != DType::kF32 && parameter.value.dtype != DType::kF64)
      throw Error(
          ErrorCode::kUnavailable,
          Text(
              "a step with a factor: parameter '", parameter.name, "' on a GPU is ",
              NameOf(parameter.value.dtype), "; expected f32 or f64, or the factor 1"));
}

void ParameterShards::StepShares(
    double factor, const MakeUpdate& make, const std::function<void()>& begin) {
  {
    const StepMeter::Scope timed(meter_);
    UpdateShares(factor, make, begin);
  }
  meter_.EndStep();
}

// `begin` runs before the first update, when all ranks have begun the step.
void ParameterShards::UpdateShares(
    double factor, const MakeUpdate& make, const std::function<void()>& begin) {
  if (on_gpu() && factor != 1) CheckScalable();
  WaitForAll();
  const bool one_pass = is_fused() && !reduced_;
  if (one_pass) {
    MarkTheRest();
    Meet();
  } else {
    Reduce();
  }
  if (begin != nullptr) begin();
  for (size_t b = 0; b < bucket_count(); ++b) {
    meter_.AddBucket(InBucket(*gradients_, b).bytes());
    if (one_pass) {
      UpdateInOnePass(b, factor, make(own_[b]));
    } else {
      UpdateReduced(b, factor, make(own_[b]));
    }
  }
  if (!one_pass) StartGathers();
  Reset();
}

// Waits until all ranks have arrived, and measures their lateness. The one pass does not measure
// it.
void ParameterShards::Meet() {
  if (bucket_count() > 0) communicator_->StartBarrier().Wait(meter_.lateness());
}

void ParameterShards::UpdateInOnePass(
    size_t bucket, double factor, const ops::ShareUpdate& update) {
  const Buffer gradient = InBucket(*gradients_, bucket);
  if (settings_.one_copy) {
    communicator_->ReduceUpdate(gradient, settings_.op, {1, factor}, plan_.shares[bucket], update);
  } else {
    communicator_->ReduceUpdateGather(
        gradient, InBucket(*values_, bucket), settings_.op, {1, factor}, plan_.shares[bucket],
        update);
  }
}

// On a GPU, the share is one piece: each piece is a launch.
void ParameterShards::UpdateReduced(size_t bucket, double factor, const ops::ShareUpdate& update) {
  const Buffer gradient = InBucket(*gradients_, bucket);
  const ops::Range share = plan_.Share(bucket, own_rank());
  if (!on_gpu()) return ops::UpdateInPieces(gradient, share, factor, update.piece);
  const Buffer own = gradient.Slice(share.begin, share.count);
  if (factor != 1) BlockDeviceOf(own).Multiply(own, factor);
  if (own.count > 0) update.piece(share.begin, share.count, own.data);
}

void ParameterShards::StartGathers() {
  // The ranks of a host are numbered differently, so this wait does not count as lateness.
  if (host_) return host_->Barrier();
  if (settings_.one_copy) return communicator_->StartBarrier().Wait(meter_.lateness());
  for (size_t b = bucket_count(); b-- > 0;) {
    const Buffer bucket = InBucket(*values_, b);
    const ops::Range share = plan_.Share(b, communicator_->rank());
    gathers_[b] = communicator_->StartAllGather(
        bucket.Slice(share.begin, share.count), bucket, plan_.shares[b]);
  }
}

void ParameterShards::WaitFor(size_t i) {
  CheckIndex(i);
  WaitForBucket(plan_.layout.bucket_of[i]);
}

void ParameterShards::WaitForAll() {
  for (size_t b = bucket_count(); b-- > 0;) WaitForBucket(b);
}

// Several parameters share a bucket. Only the first wait for the bucket waits.
void ParameterShards::WaitForBucket(size_t bucket) {
  const StepMeter::Scope timed(meter_);
  gathers_[bucket].Wait(meter_.lateness());
  gathers_[bucket] = {};
}

void ParameterShards::Reset() {
  ready_.assign(size(), false);
  missing_.clear();
  for (const Bucket& bucket : plan_.layout.buckets) missing_.push_back(bucket.gradients.size());
  reductions_.clear();
  reduced_ = false;
}

// --- the optimizer's state ----------------------------------------------------------------------

DType ParameterShards::SlotDType(size_t slot, size_t i) const {
  CheckSlot(slot);
  CheckIndex(i);
  return settings_.slots[slot].value_or(parameters_[i].value.dtype);
}

OwnedShare::Column ParameterShards::StateOf(size_t slot, size_t bucket) const {
  const DType dtype = settings_.slots[slot].value_or(plan_.layout.buckets[bucket].dtype);
  return {static_cast<char*>(state_->data()) + state_offsets_[slot][bucket], SizeOf(dtype)};
}

char* ParameterShards::StateAt(size_t slot, const ShardSlice& slice) const {
  const OwnedShare& own = own_[plan_.layout.bucket_of[slice.parameter]];
  const OwnedShare::Column& state = own.state[slot];
  return state.data + (slice.place - own.range.begin) * state.element;
}

void ParameterShards::ForOwnSlices(const SliceUpdate& visit) const {
  for (const OwnedShare& share : own_)
    SliceCursor(share, visit)(share.range.begin, share.range.count, share.gradients.data);
}

void ParameterShards::GatherState(size_t slot, size_t i, int root, void* output) {
  const DType dtype = SlotDType(slot, i);
  ops::Counts counts;
  for (int r = 0; r < owners().size(); ++r) counts.push_back(plan_.Owned(i, r).count);
  const ShardSlice own = plan_.Owned(i, own_rank());
  // State on a GPU goes through host memory.
  std::vector<char> copy;
  Buffer mine(own.count > 0 ? StateAt(slot, own) : nullptr, own.count, dtype);
  if (on_gpu()) {
    copy.resize(mine.bytes());
    Copy(Placed(mine), Buffer(copy.data(), mine.count, dtype));
    mine.data = copy.data();
  }
  const Buffer all(output, parameters_[i].value.count, dtype);
  if (root < 0) return owners().StartAllGather(mine, all, counts).Wait();
  if (!host_) return communicator_->StartGather(mine, all, root, counts).Wait();
  // Every host has the whole state, so only the root's host gathers it.
  const auto here = std::find(host_ranks_.begin(), host_ranks_.end(), root);
  if (here == host_ranks_.end()) return;
  host_->StartGather(mine, all, static_cast<int>(here - host_ranks_.begin()), counts).Wait();
}

void ParameterShards::SetState(size_t slot, size_t i, const void* input) {
  state_is_copied_ = false;
  const uint64_t element = SizeOf(SlotDType(slot, i));
  const ShardSlice own = plan_.Owned(i, own_rank());
  if (own.count == 0) return;
  auto* const from = const_cast<char*>(static_cast<const char*>(input)) + own.first * element;
  const DType dtype = SlotDType(slot, i);
  Copy(Buffer(from, own.count, dtype), Placed(Buffer(StateAt(slot, own), own.count, dtype)));
}

}  // namespace dtrun::runtime
