// A mark counts down the missing gradients of a bucket. A bucket starts when it and all buckets
// before it are complete. So every rank starts the buckets in the same order without negotiation.
// Wait marks the remaining gradients, waits for the buckets in their order, and copies packed
// gradients back. A large gradient is not packed: it is a bucket, and is reduced where it lies.
// Copies go in cache-sized pieces. Between the pieces, the started buckets advance, so that the
// wire does not wait for a copy.
//
// A flag per gradient tells whether any rank used the gradient in a step. The flags lie at the end
// of the last bucket and are reduced with it. That bucket starts after all gradients are marked, so
// all flags are set by then.
//
// At the end of the first wait, the reducer makes the plan of all further steps. Rank 0 broadcasts
// the order in which its gradients became ready. At that moment no operation is under way, and the
// reduction of an element does not depend on its bucket. At such a moment the autotuner may also
// change the size of the buckets and their route.
//
// On a GPU all work is enqueued: copies in the trainer's stream, reductions in a second stream.
// When a bucket starts, the second stream waits for the trainer's stream. At the end of the step,
// the trainer's stream waits for the second stream. The hosts do not wait for their GPUs, so the
// flags stay in host memory and are reduced by their own operation. Only a bucket with a wire
// format goes through host memory, and the host waits for it.

#include "runtime/reducer/bucketed_reducer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/device/block_device.h"
#include "runtime/job/rank_agreement.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// Checks the arguments before anything is sent.
std::vector<Gradient> Checked(std::vector<Gradient> gradients, const ReducerSettings& settings) {
  CheckGradients(gradients);
  CheckSettings(settings, gradients);
  return gradients;
}

BucketPlan FirstPlan(const std::vector<Gradient>& gradients, const ReducerSettings& settings) {
  const std::vector<GradientSpec> specs = SpecsOf(gradients);
  return PlanBuckets(specs, PlanSettingsOf(settings, specs), ReverseOrder(specs.size()));
}

bool AreAllPacked(const std::vector<Gradient>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const Gradient& gradient) {
    return gradient.buffer.data != nullptr;
  });
}

const base::Clock& ClockOf(const ReducerSettings& settings) {
  static const base::SteadyClock steady;
  return settings.clock == nullptr ? steady : *settings.clock;
}

}  // namespace

GradientReducer::GradientReducer(
    ops::Communicator& communicator, std::vector<Gradient> gradients, ReducerSettings settings,
    std::unique_ptr<ReducerObserver> observer)
    : gradients_(Checked(std::move(gradients), settings)),
      settings_(Settled(std::move(settings), gradients_, communicator.members().SharesHost())),
      communicator_(communicator.Duplicate()),
      plan_(FirstPlan(gradients_, settings_)),
      movable_(AgreeOnPlan()),
      block_(MakeGradientBlock(*communicator_, plan_, gradients_)),
      wire_(settings_.wire, [this] { Progress(); }),
      was_used_(gradients_.size()),
      order_(ReverseOrder(gradients_.size())),
      rebuilt_(!settings_.rebuild || gradients_.empty()),
      meter_(ClockOf(settings_)),
      observer_(std::move(observer)) {
  LayWire();
  if (settings_.autotune) StartTuning();
  Reset();
}

// Returns true if no rank has gradients in the block.
bool GradientReducer::AgreeOnPlan() {
  return Agree(
      *communicator_, {"the reducer", "gradients to reduce", "gradient", Lines(settings_, plan_)},
      AreAllPacked(gradients_));
}

// If a step is not complete, for example after an exception, the process keeps the memory.
GradientReducer::~GradientReducer() {
  if (block_->IsIdle(works_)) return;
  block_->Keep();
  wire_.Keep();
}

void GradientReducer::LayWire() {
  wire_.Lay(*communicator_, plan_, !block_->flags_are_apart());
  flags_ = UsedFlags(settings_.op, wire_.flags().count > 0 ? wire_.flags() : block_->flags());
}

Buffer GradientReducer::gradient(size_t i) const {
  CheckIndex(i);
  return IsPacked(i) ? gradients_[i].buffer : block_->gradient(i);
}

void GradientReducer::CheckIndex(size_t i) const {
  if (i < gradients_.size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("gradient ", i, " does not exist; the reducer has ", gradients_.size()));
}

bool GradientReducer::IsAlone(size_t i) const {
  CheckIndex(i);
  return plan_.buckets[plan_.bucket_of[i]].is_single;
}

void GradientReducer::CheckAlone(size_t i) const {
  if (IsAlone(i)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "gradient ", i, " ", Describe(plan_.gradients[i]),
          " shares its bucket with other gradients and cannot be reduced in a separate place"));
}

bool GradientReducer::WasUsed(size_t i) const {
  CheckIndex(i);
  return was_used_[i];
}

template <typename Body>
void GradientReducer::Communicate(const Body& body) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  try {
    body();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

void GradientReducer::BeginMark(size_t i) {
  CheckIndex(i);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (ready_[i]) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "gradient ", i, " ", Describe(plan_.gradients[i]),
            " was marked ready twice; call Wait() (or Step()) before the next backward pass"));
  }
  ready_[i] = true;
  if (!rebuilt_) ready_order_.push_back(i);
}

void GradientReducer::EndMark(size_t i, bool used) {
  if (observer_ != nullptr) observer_->Marked(i);
  flags_.Set(i, used);
  --missing_[plan_.bucket_of[i]];
  StartReadyBuckets();
}

void GradientReducer::MarkReady(size_t i) {
  BeginMark(i);
  Communicate([&] {
    const size_t b = plan_.bucket_of[i];
    if (IsPacked(i) && plan_.buckets[b].is_single) {
      places_[b] = gradients_[i].buffer.data;
    } else if (IsPacked(i)) {
      Copy(block_->gradient(i), gradients_[i].buffer.data);
    }
    EndMark(i, true);
  });
}

void GradientReducer::MarkReadyFrom(size_t i, const void* source) {
  BeginMark(i);
  Communicate([&] {
    Copy(block_->gradient(i), source);
    EndMark(i, true);
  });
}

void GradientReducer::MarkReadyAt(size_t i, const void* source, void* place) {
  CheckAlone(i);
  BeginMark(i);
  Communicate([&] {
    const GradientSpec& spec = plan_.gradients[i];
    if (source != place) Copy(Buffer(place, spec.count, spec.dtype), source);
    places_[plan_.bucket_of[i]] = place;
    EndMark(i, true);
  });
}

void GradientReducer::MarkUnused(size_t i) {
  BeginMark(i);
  Communicate([&] {
    block_->Clear(block_->gradient(i));
    unused_here_[i] = true;
    EndMark(i, false);
  });
}

void GradientReducer::MarkUnusedAt(size_t i, void* place) {
  CheckAlone(i);
  BeginMark(i);
  Communicate([&] {
    Buffer zeros = gradients_[i].buffer;
    zeros.data = place;
    block_->Clear(zeros);
    places_[plan_.bucket_of[i]] = place;
    EndMark(i, false);
  });
}

// A mark that can neither start nor advance a bucket does not read the clock.
void GradientReducer::StartReadyBuckets() {
  if (works_.empty() && (missing_.empty() || missing_[0] != 0)) return;
  const StepMeter::Scope timed(meter_);
  // A mark lies between two layers of the backward pass, a good moment to advance started buckets.
  Progress();
  while (works_.size() < plan_.buckets.size() && missing_[works_.size()] == 0) Start(works_.size());
}

void GradientReducer::Start(size_t b) {
  Buffer reduced = GradientsOf(b);
  block_->BeginReduction();
  if (wire_.Has(b)) {
    reduced = wire_.Compress(b, reduced);
  } else if (b + 1 == plan_.buckets.size() && !block_->flags_are_apart()) {
    reduced.count += plan_.flags.count;
  }
  if (observer_ != nullptr) observer_->BucketStarts(b);
  if (b + 1 == plan_.buckets.size() && block_->flags_are_apart())
    flags_work_ = communicator_->StartAllReduce(block_->flags(), settings_.op);
  works_.push_back(communicator_->StartAllReduce(reduced, settings_.op, settings_.scale));
  meter_.AddBucket(reduced.bytes());
}

Buffer GradientReducer::GradientsOf(size_t b) const {
  Buffer gradients = block_->bucket(b);
  if (places_[b] != nullptr) gradients.data = places_[b];
  return gradients;
}

void GradientReducer::Wait() {
  {
    const StepMeter::Scope timed(meter_);
    if (observer_ != nullptr) observer_->WaitBegins();
    FinishStep();
    if (observer_ != nullptr) observer_->WaitEnds();
  }
  meter_.EndStep();
  if (tuner_ != nullptr) Tune();
}

void GradientReducer::FinishStep() {
  for (const Bucket& bucket : plan_.buckets) {
    for (const size_t i : bucket.gradients) {
      if (!ready_[i]) MarkReady(i);
    }
  }
  Communicate([this] {
    FinishBuckets();
    if (!rebuilt_) Rebuild();
    Reset();
  });
}

void GradientReducer::FinishBuckets() {
  block_->EndReductions();
  if (block_->flags_are_apart()) flags_work_.Wait(meter_.lateness());
  for (size_t b = 0; b < works_.size(); ++b) Finish(b);
  for (size_t i = 0; i < gradients_.size(); ++i) was_used_[i] = flags_.WasUsed(i);
  // Only the last bucket tells whether other ranks used these gradients.
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (unused_here_[i] && was_used_[i]) Unpack(i);
  }
}

void GradientReducer::Finish(size_t b) {
  works_[b].Wait(meter_.lateness());
  if (wire_.Has(b)) wire_.Decompress(b, GradientsOf(b));
  for (const size_t i : plan_.buckets[b].gradients) {
    if (!unused_here_[i] && places_[b] == nullptr) Unpack(i);
  }
}

void GradientReducer::Rebuild() {
  std::vector<uint64_t> order = std::exchange(ready_order_, {});
  communicator_->Broadcast(Buffer(order.data(), order.size()), 0);
  rebuilt_ = true;
  order_.assign(order.begin(), order.end());
  Cut();
}

// Cuts new buckets. No operation is under way.
void GradientReducer::Cut() {
  BucketPlan plan =
      movable_ ? PlanBuckets(plan_.gradients, plan_.settings, order_) : Replan(plan_, order_);
  if (plan.buckets == plan_.buckets) return;
  plan_ = std::move(plan);
  if (movable_) block_->Clear();
  LayWire();
}

void GradientReducer::StartTuning() {
  uint64_t bytes = 0;
  for (const GradientSpec& gradient : plan_.gradients)
    bytes += gradient.count * SizeOf(gradient.dtype);
  const Tuning defaults{settings_.bucket_bytes, communicator_->route().value_or(ops::Route())};
  tuner_ = std::make_unique<Autotuner>(
      *communicator_, defaults,
      Text(gradients_.size(), " gradients of ", bytes, " bytes, ", Lines(settings_, plan_)[0]),
      *settings_.autotune);
  Apply(tuner_->tuning());
}

// Runs before the first step of the next plan.
void GradientReducer::Tune() {
  Communicate([this] {
    if (!tuner_->EndStep(std::chrono::nanoseconds(meter_.last().total_ns))) return;
    Apply(tuner_->tuning());
    Reset();
  });
}

// The minimum size of a gradient with its own bucket does not change, because trainers have asked
// which gradients are alone.
void GradientReducer::Apply(const Tuning& tuning) {
  if (communicator_->route() && tuning.route != *communicator_->route())
    communicator_->SetRoute(tuning.route);
  plan_.settings.bucket_bytes = tuning.bucket_bytes;
  plan_.settings.first_bucket_bytes =
      std::min(PlanSettingsOf(settings_, plan_.gradients).first_bucket_bytes, tuning.bucket_bytes);
  Cut();
}

void GradientReducer::Unpack(size_t i) {
  if (IsPacked(i)) Copy(gradients_[i].buffer, block_->gradient(i).data);
}

// The highest bit of the mantissa of an f32: the value stays finite.
bool GradientReducer::Corrupt(size_t bucket) {
  if (bucket >= plan_.buckets.size() || plan_.buckets[bucket].gradients.empty()) return false;
  const size_t i = plan_.buckets[bucket].gradients.front();
  const Buffer all = IsPacked(i) ? gradients_[i].buffer : block_->gradient(i);
  if (all.count == 0) return false;
  uint64_t bits = 0;
  const Buffer element = all.Slice(0, 1), copy(&bits, 1, all.dtype);
  runtime::Copy(element, copy);
  const uint64_t width = 8 * SizeOf(all.dtype);
  bits ^= uint64_t{1} << (width > 10 ? width - 10 : 0);
  runtime::Copy(copy, element);
  return true;
}

void GradientReducer::Copy(const Buffer& to, const void* from) {
  constexpr uint64_t kWorthTiming = 64 << 10;
  std::optional<StepMeter::Scope> timed;
  if (to.bytes() >= kWorthTiming) timed.emplace(meter_);
  block_->Copy(to, from, [this] { Progress(); });
}

void GradientReducer::Progress() {
  if (!works_.empty()) works_.back().Test();
}

void GradientReducer::Reset() {
  ready_.assign(gradients_.size(), false);
  unused_here_.assign(gradients_.size(), false);
  places_.assign(plan_.buckets.size(), nullptr);
  missing_.clear();
  for (const Bucket& bucket : plan_.buckets) missing_.push_back(bucket.gradients.size());
  works_.clear();
}

}  // namespace dtrun::runtime
