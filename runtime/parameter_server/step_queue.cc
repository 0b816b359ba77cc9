#include "runtime/parameter_server/step_queue.h"

#include <algorithm>

namespace dtrun::runtime {

StepQueue::StepQueue(uint64_t first, uint64_t end, uint64_t most_out)
    : next_(first), end_(std::max(first, end)), most_out_(most_out), done_(first) {}

std::optional<uint64_t> StepQueue::Take(int worker) {
  if (out_.size() >= most_out_) return std::nullopt;
  if (!again_.empty()) {
    out_[worker] = again_.front();
    again_.pop_front();
  } else if (next_ < end_) {
    out_[worker] = next_++;
  } else {
    return std::nullopt;
  }
  return out_[worker];
}

void StepQueue::Done(int worker) { done_ += out_.erase(worker); }

std::optional<uint64_t> StepQueue::Lose(int worker) {
  const auto lost = out_.find(worker);
  if (lost == out_.end()) return std::nullopt;
  const uint64_t step = lost->second;
  out_.erase(lost);
  again_.push_back(step);
  ++repeated_;
  return step;
}

}  // namespace dtrun::runtime
