// Marking a gradient counts its bucket down. A bucket starts when it and all buckets before it are
// complete, so every rank starts them in the same order without a word. The wait marks what is
// left, waits for the buckets in their order, and copies packed gradients back. Large ones are not
// packed: each is a bucket, and reduced where it lies. Copies go by
// cache-sized pieces, between which the buckets that are under way are moved on: the wire does not
// wait for a copy.
//
// Whether any rank used a gradient in a step travels with the gradients: a flag for each, reduced
// like them, at the end of the last bucket. That bucket starts after all gradients are marked, so
// all flags are set by then.

#include "runtime/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

std::vector<GradientSpec> SpecsOf(const std::vector<Gradient>& gradients) {
  std::vector<GradientSpec> specs;
  for (const Gradient& gradient : gradients) {
    specs.push_back({gradient.name, gradient.buffer.count, gradient.buffer.dtype});
  }
  return specs;
}

void CheckGradients(const std::vector<Gradient>& gradients) {
  for (const Gradient& gradient : gradients) {
    if (SizeOf(gradient.buffer.dtype) == 0) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("gradient '", gradient.name, "' has a dtype that does not exist"));
    }
    if (gradient.buffer.device >= 0) {
      throw Error(
          ErrorCode::kUnavailable,
          Text(
              "gradient '", gradient.name, "' lies on GPU ", gradient.buffer.device,
              "; no backend here reduces GPU memory"));
    }
  }
}

const base::Clock& ClockOf(const ReducerSettings& settings) {
  static const base::SteadyClock steady;
  return settings.clock == nullptr ? steady : *settings.clock;
}

// The value of a flag that changes nothing in the reduction of others: it stays only if no rank
// used the gradient.
double UnusedFlag(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kProduct ? 1 : 0; }

// The bytes of 0 or 1.
uint64_t FlagBits(DType dtype, double value) {
  if (value == 0) return 0;
  if (dtype == DType::kF64) return 0x3ff0000000000000u;
  if (dtype == DType::kF16) return 0x3c00;
  if (dtype == DType::kBF16) return 0x3f80;
  return 0x3f800000;
}

bool IsScaled(const Scale& scale) { return scale.before != 1 || scale.after != 1; }

// The flags are scaled as well, and have to survive it in 16 bits.
void CheckScale(const ReducerSettings& settings) {
  constexpr double kMost = 1024;
  for (const double factor : {settings.scale.before, settings.scale.after}) {
    if (factor >= 1 / kMost && factor <= kMost) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("gradients are scaled by ", factor, "; expected a factor in [1/1024, 1024]"));
  }
  const bool adds = settings.op == ReduceOp::kSum || settings.op == ReduceOp::kAverage;
  if (IsScaled(settings.scale) && !adds) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "gradients are scaled and reduced by ",
                                         NameOf(settings.op), "; expected sum or average"));
  }
}

// 64-bit FNV-1a.
uint64_t DigestOf(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return digest;
}

// The ranks by what they have, for the first line of their listings that is not the same
// everywhere.
std::string FirstDifference(const std::vector<std::string>& listings) {
  std::vector<std::vector<std::string>> lines;
  size_t longest = 0;
  for (const std::string& listing : listings) {
    lines.push_back(base::Split(listing, '\n'));
    longest = std::max(longest, lines.back().size());
  }
  for (size_t i = 0; i < longest; ++i) {
    std::map<std::string, std::vector<int>> sides;
    for (size_t rank = 0; rank < lines.size(); ++rank) {
      sides[i < lines[rank].size() ? lines[rank][i] : "none"].push_back(static_cast<int>(rank));
    }
    if (sides.size() == 1) continue;
    std::vector<std::string> texts;
    for (const auto& [line, ranks] : sides)
      texts.push_back(Text(line, " on ", base::RankList(ranks)));
    const std::string what =
        i == 0 ? "the reducer's options are " : Text("gradient ", i - 1, " is ");
    return what + base::Join(texts, ", ");
  }
  return "the listings are equal";
}

}  // namespace

GradientReducer::GradientReducer(
    ops::Communicator& communicator, std::vector<Gradient> gradients,
    const ReducerSettings& settings)
    : communicator_(communicator.Duplicate()),
      gradients_(std::move(gradients)),
      settings_(settings),
      meter_(ClockOf(settings)) {
  CheckGradients(gradients_);
  CheckScale(settings_);
  plan_ = PlanBuckets(SpecsOf(gradients_), settings_.bucket_bytes);
  flags_ = AppendFlags(plan_);
  AgreeOnPlan();
  block_ = communicator_->Allocate(plan_.block_bytes);
  Reset();
}

GradientReducer::~GradientReducer() {
  const bool under_way = std::any_of(works_.begin(), works_.end(), [](const ops::Work& work) {
    try {
      return !work.Done();
    } catch (const Error&) {
      return true;  // given up: nobody knows whether its peers still write
    }
  });
  // Left in the middle of a step, by an exception say: the process keeps the memory.
  if (under_way) static_cast<void>(block_.release());
}

void GradientReducer::AgreeOnPlan() {
  std::string listing =
      Text(NameOf(settings_.op), " in buckets of ", settings_.bucket_bytes, " bytes");
  if (IsScaled(settings_.scale))
    listing += Text(", scaled by ", settings_.scale.before, " and ", settings_.scale.after);
  for (const GradientSpec& spec : SpecsOf(gradients_)) listing += "\n" + Describe(spec);
  uint64_t digest = DigestOf(listing);
  std::vector<uint64_t> digests(static_cast<size_t>(communicator_->size()));
  communicator_->AllGather(Buffer(&digest, 1), Buffer(digests.data(), digests.size()));
  for (const uint64_t other : digests) {
    if (other == digests[0]) continue;
    throw Error(
        ErrorCode::kMismatch, Text(
                                  "the ranks have different gradients to reduce: ",
                                  FirstDifference(ops::AllGatherBytes(*communicator_, listing))));
  }
}

Buffer GradientReducer::InBlock(size_t i) const {
  const Buffer& buffer = gradients_[i].buffer;
  return Buffer(static_cast<char*>(block_->data()) + plan_.offsets[i], buffer.count, buffer.dtype);
}

Buffer GradientReducer::gradient(size_t i) const {
  CheckIndex(i);
  return IsPacked(i) ? gradients_[i].buffer : InBlock(i);
}

void GradientReducer::CheckIndex(size_t i) const {
  if (i < gradients_.size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("gradient ", i, " does not exist; the reducer has ", gradients_.size()));
}

void* GradientReducer::FlagOf(size_t i) const {
  return static_cast<char*>(block_->data()) + flags_.offset + i * SizeOf(flags_.dtype);
}

void GradientReducer::SetFlag(size_t i, bool used) {
  const double unused = UnusedFlag(settings_.op);
  const uint64_t bits = FlagBits(flags_.dtype, used ? 1 - unused : unused);
  std::memcpy(FlagOf(i), &bits, SizeOf(flags_.dtype));
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
          "gradient ", i, " ", Describe(SpecsOf(gradients_)[i]),
          " shares its bucket with others, so that it cannot be reduced in a place of its own"));
}

bool GradientReducer::WasUsed(size_t i) const {
  CheckIndex(i);
  uint64_t bits = 0;
  std::memcpy(&bits, FlagOf(i), SizeOf(flags_.dtype));
  return bits != FlagBits(flags_.dtype, UnusedFlag(settings_.op));
}

void GradientReducer::BeginMark(size_t i) {
  CheckIndex(i);
  if (ready_[i]) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            "gradient ", i, " ", Describe(SpecsOf(gradients_)[i]),
            " was marked ready twice; call Wait() (or Step()) before the next backward pass"));
  }
  ready_[i] = true;
}

void GradientReducer::EndMark(size_t i, bool used) {
  SetFlag(i, used);
  --missing_[plan_.bucket_of[i]];
  StartReadyBuckets();
}

void GradientReducer::MarkReady(size_t i) {
  BeginMark(i);
  const size_t b = plan_.bucket_of[i];
  if (IsPacked(i) && plan_.buckets[b].is_single) {
    places_[b] = gradients_[i].buffer.data;
  } else if (IsPacked(i)) {
    Copy(InBlock(i), gradients_[i].buffer.data);
  }
  EndMark(i, true);
}

void GradientReducer::MarkReadyFrom(size_t i, const void* source) {
  BeginMark(i);
  Copy(InBlock(i), source);
  EndMark(i, true);
}

void GradientReducer::MarkReadyAt(size_t i, const void* source, void* place) {
  CheckAlone(i);
  BeginMark(i);
  if (source != place) {
    Copy(Buffer(place, gradients_[i].buffer.count, gradients_[i].buffer.dtype), source);
  }
  places_[plan_.bucket_of[i]] = place;
  EndMark(i, true);
}

void GradientReducer::MarkUnused(size_t i) {
  BeginMark(i);
  const Buffer place = InBlock(i);
  if (place.count > 0) std::memset(place.data, 0, place.bytes());
  unused_here_[i] = true;
  EndMark(i, false);
}

void GradientReducer::MarkUnusedAt(size_t i, void* place) {
  CheckAlone(i);
  BeginMark(i);
  std::memset(place, 0, gradients_[i].buffer.bytes());
  places_[plan_.bucket_of[i]] = place;
  EndMark(i, false);
}

// A mark that does nothing here pays for no look at the clock.
void GradientReducer::StartReadyBuckets() {
  if (works_.empty() && (missing_.empty() || missing_[0] != 0)) return;
  const StepMeter::Scope timed(meter_);
  // Between two layers of a backward pass is a good moment to move what is under way.
  if (!works_.empty()) works_.back().Test();
  while (works_.size() < plan_.buckets.size() && missing_[works_.size()] == 0) {
    const Bucket& bucket = plan_.buckets[works_.size()];
    void* place = places_[works_.size()];
    if (place == nullptr) place = static_cast<char*>(block_->data()) + bucket.offset;
    const Buffer slice(place, bucket.count, bucket.dtype);
    works_.push_back(communicator_->StartAllReduce(slice, settings_.op, settings_.scale));
    meter_.AddBucket(slice.bytes());
  }
}

void GradientReducer::Wait() {
  {
    const StepMeter::Scope timed(meter_);
    FinishStep();
  }
  meter_.EndStep();
}

void GradientReducer::FinishStep() {
  for (size_t i = gradients_.size(); i-- > 0;) {
    if (!ready_[i]) MarkReady(i);
  }
  for (size_t b = 0; b < works_.size(); ++b) {
    works_[b].Wait(meter_.lateness());
    for (const size_t i : plan_.buckets[b].gradients) {
      if (!unused_here_[i] && places_[b] == nullptr) Unpack(i);
    }
  }
  // Only the last bucket tells whether others used these.
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (unused_here_[i] && WasUsed(i)) Unpack(i);
  }
  Reset();
}

void GradientReducer::Unpack(size_t i) {
  if (IsPacked(i)) Copy(gradients_[i].buffer, InBlock(i).data);
}

void GradientReducer::Copy(const Buffer& to, const void* from) {
  constexpr uint64_t kPiece = 256 << 10;  // bytes
  constexpr uint64_t kWorthTiming = 64 << 10;
  std::optional<StepMeter::Scope> timed;
  if (to.bytes() >= kWorthTiming) timed.emplace(meter_);
  for (uint64_t begin = 0; begin < to.bytes(); begin += kPiece) {
    std::memcpy(
        static_cast<char*>(to.data) + begin, static_cast<const char*>(from) + begin,
        std::min(kPiece, to.bytes() - begin));
    if (!works_.empty()) works_.back().Test();
  }
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
