// Time is measured in bytes that have become ready: each gradient is an interval of its size. A
// bucket spans the time from its first gradient to its last. Bytes of other buckets in this span
// delay the first gradient. If this delay exceeds the limit of the bucket, the next gradient begins
// another bucket.
//
// PlanBuckets deals gradients to drafts of buckets in the order in which they become ready. A draft
// is done when it is full. Drafts lie in the block in the order in which they become complete, and
// start in this order. Replan must not move a gradient. It walks along the block and cuts it into
// new pieces.

#include "runtime/reducer/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"

namespace dtrun::runtime {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

uint64_t BytesOf(const GradientSpec& gradient) { return gradient.count * SizeOf(gradient.dtype); }

bool IsFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

std::vector<size_t> GroupOf(const BucketPlan& plan) {
  std::vector<size_t> group_of(plan.gradients.size(), kNone);
  for (size_t g = 0; g < plan.settings.groups.size(); ++g)
    for (const size_t i : plan.settings.groups[g]) group_of[i] = g;
  return group_of;
}

bool IsLarge(const BucketPlan& plan, size_t i) {
  return BytesOf(plan.gradients[i]) >= plan.settings.single_bytes;
}

// The gradients of a future bucket.
struct Draft {
  std::vector<size_t> gradients = {};
  uint64_t begin = 0;  // ready bytes when its first gradient began
  uint64_t end = 0;    // ready bytes when its last gradient was ready
  uint64_t bytes = 0;
  uint64_t limit = 0;
};

class Drafts {
 public:
  explicit Drafts(const BucketPlan& plan)
      : plan_(plan), group_of_(GroupOf(plan)), of_group_(plan.settings.groups.size(), kNone) {}

  void Add(size_t i) {
    const uint64_t bytes = Aligned(BytesOf(plan_.gradients[i]));
    Draft& draft = drafts_[DraftFor(i)];
    ready_ += bytes;
    draft.gradients.push_back(i);
    draft.bytes += bytes;
    draft.end = ready_;
  }

  std::vector<Draft> InOrder() && {
    std::stable_sort(drafts_.begin(), drafts_.end(), [](const Draft& a, const Draft& b) {
      return a.end < b.end;
    });
    return std::move(drafts_);
  }

 private:
  size_t DraftFor(size_t i) {
    if (group_of_[i] != kNone) return Known(of_group_[group_of_[i]]);
    if (IsLarge(plan_, i)) return New();
    size_t& open = open_.try_emplace(plan_.gradients[i].dtype, kNone).first->second;
    if (open != kNone && !HasRoom(drafts_[open])) open = kNone;
    return Known(open);
  }

  bool HasRoom(const Draft& draft) const {
    return draft.bytes < draft.limit && ready_ - draft.begin - draft.bytes <= draft.limit;
  }

  size_t Known(size_t& draft) {
    if (draft == kNone) draft = New();
    return draft;
  }

  size_t New() {
    const PlanSettings& settings = plan_.settings;
    const uint64_t limit = drafts_.empty() ? settings.first_bucket_bytes : settings.bucket_bytes;
    drafts_.push_back({.begin = ready_, .limit = limit});
    return drafts_.size() - 1;
  }

  const BucketPlan& plan_;
  std::vector<size_t> group_of_;
  std::vector<size_t> of_group_;  // the draft of each group, or kNone
  uint64_t ready_ = 0;            // bytes
  std::map<DType, size_t> open_;  // the draft that has room, or kNone
  std::vector<Draft> drafts_;
};

// Appends a bucket of gradients that lie in a row at their offsets.
void AppendBucket(BucketPlan& plan, std::vector<size_t> gradients) {
  const size_t first = gradients.front(), last = gradients.back();
  const DType dtype = plan.gradients[first].dtype;
  const uint64_t offset = plan.offsets[first];
  const bool is_single = gradients.size() == 1 && IsLarge(plan, first);
  const uint64_t end = plan.offsets[last] + Aligned(BytesOf(plan.gradients[last]));
  for (const size_t i : gradients) plan.bucket_of[i] = plan.buckets.size();
  plan.buckets.push_back(
      {.offset = offset,
       .count = is_single ? plan.gradients[first].count : (end - offset) / SizeOf(dtype),
       .dtype = dtype,
       .is_single = is_single,
       .gradients = std::move(gradients)});
}

bool CarriesFlags(const BucketPlan& plan, const Bucket& bucket) {
  return !plan.settings.flags_apart && IsFloat(bucket.dtype) && !bucket.is_single &&
         bucket.offset + bucket.count * SizeOf(bucket.dtype) == plan.flags.offset;
}

// Appends a bucket of flags alone. The dtype and the place of the flags are settled.
void AppendFlagsBucket(BucketPlan& plan) {
  plan.buckets.push_back(
      {.offset = plan.flags.offset,
       .count = 0,
       .dtype = plan.flags.dtype,
       .is_single = false,
       .gradients = {}});
}

// Appends room for the flags, behind the gradients.
void AppendFlags(BucketPlan& plan) {
  plan.flags = {.offset = plan.block_bytes, .count = 0, .dtype = DType::kF32};
  if (plan.gradients.empty()) return;
  const bool carried = CarriesFlags(plan, plan.buckets.back());
  if (carried) plan.flags.dtype = plan.buckets.back().dtype;
  if (!carried) AppendFlagsBucket(plan);
  const uint64_t element = SizeOf(plan.flags.dtype);
  plan.flags.count = Aligned(plan.gradients.size() * element) / element;
  // The room has the same size for every dtype of flags, so that a plan in another order fits the
  // same block.
  plan.block_bytes += Aligned(plan.gradients.size() * SizeOf(DType::kF64));
}

// The time in which a gradient becomes ready, in ready bytes of all gradients.
struct Interval {
  uint64_t begin = 0, end = 0;
};

std::vector<Interval> IntervalsOf(const BucketPlan& plan, const std::vector<size_t>& ready_order) {
  std::vector<Interval> intervals(plan.gradients.size());
  uint64_t ready = 0;
  for (const size_t i : ready_order) {
    intervals[i] = {ready, ready + Aligned(BytesOf(plan.gradients[i]))};
    ready = intervals[i].end;
  }
  return intervals;
}

// A bucket that is cut from the block.
struct Piece {
  std::vector<size_t> gradients;
  Interval span;
  uint64_t bytes = 0;
  bool closed = false;  // a group or a large gradient
};

class Cutter {
 public:
  Cutter(const BucketPlan& plan, const std::vector<size_t>& ready_order)
      : plan_(plan), intervals_(IntervalsOf(plan, ready_order)), group_of_(GroupOf(plan)) {}

  void Add(size_t i) {
    const bool closed = group_of_[i] != kNone || IsLarge(plan_, i);
    if (closed ? !IsOfLastGroup(i) : !Fits(i))
      pieces_.push_back({.gradients = {}, .span = intervals_[i], .closed = closed});
    Piece& piece = pieces_.back();
    piece.gradients.push_back(i);
    piece.span = Joined(piece.span, intervals_[i]);
    piece.bytes += SizeOf(intervals_[i]);
  }

  std::vector<Piece> InOrder() && {
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return a.span.end < b.span.end;
    });
    return std::move(pieces_);
  }

 private:
  static uint64_t SizeOf(const Interval& interval) { return interval.end - interval.begin; }
  static Interval Joined(const Interval& a, const Interval& b) {
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  }

  bool IsOfLastGroup(size_t i) const {
    return group_of_[i] != kNone && !pieces_.empty() &&
           group_of_[pieces_.back().gradients.front()] == group_of_[i];
  }

  bool Fits(size_t i) const {
    if (pieces_.empty() || pieces_.back().closed) return false;
    const Piece& piece = pieces_.back();
    const Interval span = Joined(piece.span, intervals_[i]);
    const PlanSettings& settings = plan_.settings;
    const uint64_t limit = span.begin == 0 ? settings.first_bucket_bytes : settings.bucket_bytes;
    const uint64_t bytes = piece.bytes + SizeOf(intervals_[i]);
    return plan_.gradients[piece.gradients.front()].dtype == plan_.gradients[i].dtype &&
           piece.bytes < limit && SizeOf(span) - bytes <= limit;
  }

  const BucketPlan& plan_;
  std::vector<Interval> intervals_;
  std::vector<size_t> group_of_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<size_t> ReverseOrder(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

BucketPlan PlanBuckets(
    std::vector<GradientSpec> gradients, PlanSettings settings,
    const std::vector<size_t>& ready_order) {
  BucketPlan plan;
  plan.gradients = std::move(gradients);
  plan.settings = std::move(settings);
  plan.offsets.resize(plan.gradients.size());
  plan.bucket_of.resize(plan.gradients.size());
  Drafts drafts(plan);
  for (const size_t i : ready_order) drafts.Add(i);
  for (Draft& draft : std::move(drafts).InOrder()) {
    for (const size_t i : draft.gradients) {
      plan.offsets[i] = plan.block_bytes;
      plan.block_bytes += Aligned(BytesOf(plan.gradients[i]));
    }
    AppendBucket(plan, std::move(draft.gradients));
  }
  AppendFlags(plan);
  return plan;
}

BucketPlan Replan(const BucketPlan& plan, const std::vector<size_t>& ready_order) {
  BucketPlan replanned = plan;
  replanned.buckets.clear();
  if (plan.gradients.empty()) return replanned;
  std::vector<const Bucket*> in_block;
  for (const Bucket& bucket : plan.buckets) in_block.push_back(&bucket);
  std::stable_sort(in_block.begin(), in_block.end(), [](const Bucket* a, const Bucket* b) {
    return a->offset < b->offset;
  });
  Cutter cutter(plan, ready_order);
  for (const Bucket* bucket : in_block)
    for (const size_t i : bucket->gradients) cutter.Add(i);
  for (Piece& piece : std::move(cutter).InOrder())
    AppendBucket(replanned, std::move(piece.gradients));
  if (!CarriesFlags(replanned, replanned.buckets.back())) AppendFlagsBucket(replanned);
  return replanned;
}

std::vector<std::vector<size_t>> DealGroups(
    const std::vector<GradientSpec>& gradients, uint64_t group_count) {
  std::vector<std::vector<size_t>> groups;
  size_t next = 0;
  for (uint64_t g = 0; g < group_count; ++g) {
    const size_t size = gradients.size() / group_count + (g < gradients.size() % group_count);
    std::map<DType, std::vector<size_t>> by_dtype;
    for (size_t k = 0; k < size; ++k, ++next) by_dtype[gradients[next].dtype].push_back(next);
    for (auto& [dtype, group] : by_dtype) groups.push_back(std::move(group));
  }
  return groups;
}

uint64_t AutoBucketBytes(const std::vector<GradientSpec>& gradients, bool within_one_host) {
  uint64_t bytes = 0;
  for (const GradientSpec& gradient : gradients) bytes += gradient.count * SizeOf(gradient.dtype);
  const uint64_t least = within_one_host ? 1 << 20 : 64 << 10, most = 4 << 20;
  return std::clamp(bytes / 16, least, most);
}

std::string Describe(const GradientSpec& gradient) {
  return base::Text("'", gradient.name, "' ", NameOf(gradient.dtype), "[", gradient.count, "]");
}

}  // namespace dtrun::runtime
