#include "runtime/parameter_server/server_plan.h"

#include <algorithm>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

constexpr uint64_t kAlignment = 64;  // a cache line

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t PartsOf(const Tensor& variable, int servers, const PartitionRule& rule) {
  const uint64_t rows = variable.shape.empty() ? 1 : variable.shape[0];
  const uint64_t bytes = variable.buffer.bytes(), number = std::max<uint64_t>(rule.number, 1);
  uint64_t parts = 1;
  switch (rule.kind) {
    case PartitionRule::Kind::kMinSize:
      parts = std::min(bytes / number, static_cast<uint64_t>(servers));
      break;
    case PartitionRule::Kind::kMaxSize: parts = bytes / number + (bytes % number > 0); break;
    case PartitionRule::Kind::kFixedShards: parts = number; break;
  }
  return std::max<uint64_t>(1, std::min(parts, rows));
}

}  // namespace

std::vector<VariableShard> VariableLayout::OfServer(int server) const {
  std::vector<VariableShard> own;
  for (const VariableShard& shard : shards)
    if (shard.server == server) own.push_back(shard);
  return own;
}

VariableLayout PlanVariables(
    const std::vector<Tensor>& variables, int servers, const PartitionRule& rule) {
  if (variables.empty())
    throw Error(ErrorCode::kInvalidArgument, "there are no variables for the parameter servers");
  CheckTensors(variables);
  VariableLayout layout;
  layout.description = base::Text("parameter servers: ", servers);
  for (size_t v = 0; v < variables.size(); ++v) {
    const Tensor& variable = variables[v];
    layout.offsets.push_back(layout.half);
    const uint64_t parts = PartsOf(variable, servers, rule);
    const uint64_t rows = parts == 1 ? 1 : variable.shape[0];
    const uint64_t row = variable.buffer.count / std::max<uint64_t>(rows, 1);
    for (uint64_t part = 0, first = 0; part < parts; ++part) {
      const uint64_t count = (rows / parts + (part < rows % parts ? 1 : 0)) * row;
      layout.shards.push_back(
          {.variable = v,
           .first = first,
           .count = count,
           .part = static_cast<int>(part),
           .parts = static_cast<int>(parts),
           .server = static_cast<int>(layout.shards.size() % static_cast<size_t>(servers)),
           .offset = layout.half + first * SizeOf(variable.buffer.dtype)});
      first += count;
    }
    layout.half += Aligned(variable.buffer.bytes());
    layout.description += base::Text(
        "\nvariable ", variable.name, ": ", Describe(variable.buffer.dtype, variable.shape), " in ",
        parts, parts == 1 ? " part" : " parts");
  }
  layout.half = std::max(layout.half, kAlignment);
  return layout;
}

StepQueue::StepQueue(uint64_t first, uint64_t end, uint64_t most_out)
    : next_(first), end_(std::max(first, end)), most_out_(most_out) {}

std::optional<uint64_t> StepQueue::Take(int worker, uint64_t end) {
  if (out_.size() >= most_out_) return std::nullopt;
  const auto lost =
      std::find_if(again_.begin(), again_.end(), [&](uint64_t step) { return step < end; });
  if (lost != again_.end()) {
    out_[worker] = *lost;
    again_.erase(lost);
  } else if (next_ < std::min(end, end_)) {
    out_[worker] = next_++;
  } else {
    return std::nullopt;
  }
  return out_[worker];
}

void StepQueue::SkipTo(uint64_t first) {
  first = std::min(first, end_);
  if (first <= floor_) return;
  floor_ = first;
  next_ = std::max(next_, first);
  again_.erase(
      std::remove_if(again_.begin(), again_.end(), [&](uint64_t step) { return step < first; }),
      again_.end());
}

bool StepQueue::over(uint64_t end) const {
  const auto below = [&](uint64_t step) { return step < end; };
  return next_ >= std::min(end, end_) && std::none_of(again_.begin(), again_.end(), below) &&
         std::none_of(out_.begin(), out_.end(), [&](const auto& out) { return below(out.second); });
}

void StepQueue::Done(int worker) { out_.erase(worker); }

std::optional<uint64_t> StepQueue::Lose(int worker) {
  const auto lost = out_.find(worker);
  if (lost == out_.end()) return std::nullopt;
  const uint64_t step = lost->second;
  out_.erase(lost);
  if (step < floor_) return std::nullopt;
  again_.push_back(step);
  ++repeated_;
  return step;
}

// After this update, the other gradients are applied to the next versions, earliest deadline first.
// Each of them must meet its deadline.
bool StalenessGate::MayApply(int worker) const {
  if (!bound_) return true;
  std::vector<uint64_t> others;
  for (const auto& [other, version] : begun_)
    if (other != worker) others.push_back(version);
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i < others.size(); ++i)
    if (version_ + 1 + i > others[i] + *bound_) return false;
  return true;
}

uint64_t StalenessGate::Apply(int worker) {
  const auto begun = begun_.find(worker);
  const uint64_t staleness = begun == begun_.end() ? 0 : version_ - begun->second;
  if (begun != begun_.end()) begun_.erase(begun);
  ++version_;
  if (histogram_.size() <= staleness) histogram_.resize(staleness + 1);
  ++histogram_[staleness];
  return staleness;
}

}  // namespace dtrun::runtime
