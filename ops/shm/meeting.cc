#include "ops/shm/meeting.h"

#include <algorithm>
#include <cstring>

namespace dtrun::ops::shm {

Meeting::Meeting(std::shared_ptr<ShmGroup> group, Collective collective, uint64_t sequence)
    : group_(std::move(group)),
      collective_(std::move(collective)),
      sequence_(sequence),
      element_(SizeOf(
          UsesInput(collective_, group_->rank()) ? collective_.input.dtype
                                                 : collective_.output.dtype)),
      arithmetic_{
          .op = collective_.op,
          .divisor = collective_.divisor == 0 ? group_->size() : collective_.divisor,
          .scale = collective_.scale},
      call_(CallOf(collective_, group_->rank())),
      called_(static_cast<size_t>(group_->size()), Called{.call = &call_}),
      calls_(called_.data(), group_->size()) {}

void Meeting::Post() {
  const Layout& layout = group_->layout();
  Arrival& arrival = layout.arrival(sequence_, rank());
  Posting& posting = arrival.posting;
  if (group_->compares_calls()) posting.call = call_;
  posting.input = posting.output = {};
  const uint64_t bytes = UsesInput(collective_, rank()) ? Bytes(collective_.input) : 0;
  if (bytes > 0 && bytes <= kInlineBytes) {
    std::memcpy(layout.inline_data(sequence_, rank()), collective_.input.data, bytes);
  }
  const uint64_t output_bytes = UsesOutput(collective_, rank()) ? Bytes(collective_.output) : 0;
  // What is sure to travel beside the calls need not be found.
  if (bytes > kInlineBytes || output_bytes > kInlineBytes || call_.tables != 0) {
    if (bytes > 0) posting.input = group_->Locate(collective_.input.data, bytes);
    if (output_bytes > 0) {
      const bool in_place = collective_.output.data == collective_.input.data;
      posting.output = in_place && bytes == output_bytes
                           ? posting.input
                           : group_->Locate(collective_.output.data, output_bytes);
    }
  }
  uint64_t* counts = layout.counts(sequence_, rank());
  std::copy(collective_.send_counts.begin(), collective_.send_counts.end(), counts);
  std::copy(collective_.receive_counts.begin(), collective_.receive_counts.end(), counts + size());
  arrival.sequence.store(sequence_, std::memory_order_release);
}

bool Meeting::AllHere() {
  const Layout& layout = group_->layout();
  for (; arrived_ < size(); ++arrived_) {
    const Arrival& arrival = layout.arrival(sequence_, arrived_);
    if (arrival.sequence.load(std::memory_order_acquire) != sequence_) return false;
    if (!group_->compares_calls()) continue;
    const Call& call = arrival.posting.call;
    const uint64_t* counts = layout.counts(sequence_, arrived_);
    called_[static_cast<size_t>(arrived_)] = {
        .call = &call,
        .sends = (call.tables & Call::kSends) != 0 ? counts : nullptr,
        .receives = (call.tables & Call::kReceives) != 0 ? counts + size() : nullptr,
    };
  }
  return true;
}

std::vector<int> Meeting::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    const Arrival& arrival = group_->layout().arrival(sequence_, r);
    if (arrival.sequence.load(std::memory_order_acquire) < sequence_) missing.push_back(r);
  }
  return missing;
}

bool Meeting::IsInline() const {
  if (Combines(kind())) return call_.count * element_ <= kInlineBytes;
  for (int r = 0; r < size(); ++r) {
    if (calls_.InputCount(r) * element_ > kInlineBytes) return false;
  }
  return true;
}

bool Meeting::InputsMapped() const {
  for (int r = 0; r < size(); ++r) {
    if (posting(r).input.memory == 0 && calls_.InputCount(r) > 0) return false;
  }
  return true;
}

bool Meeting::OutputMapped(int rank) const {
  // The root of a broadcast has what it would get.
  if (kind() == CollectiveKind::kBroadcast && rank == collective_.root) return true;
  return posting(rank).output.memory != 0 || calls_.OutputCount(rank) == 0;
}

bool Meeting::OutputsMapped() const {
  for (int r = 0; r < size(); ++r) {
    if (!OutputMapped(r)) return false;
  }
  return true;
}

void Meeting::Reach() {
  for (int r = 0; r < size(); ++r) {
    const bool own = r == rank();
    inputs_.push_back(
        own ? static_cast<char*>(collective_.input.data) : Reach(r, posting(r).input));
    outputs_.push_back(
        own ? static_cast<char*>(collective_.output.data) : Reach(r, posting(r).output));
  }
}

char* Meeting::Reach(int rank, const Place& place) {
  if (place.memory == 0) return nullptr;
  for (const auto& region : regions_) {
    if (region->id == place.memory) return region->At(rank, place.offset);
  }
  regions_.push_back(group_->FindRegion(place.memory));
  return regions_.back()->At(rank, place.offset);
}

}  // namespace dtrun::ops::shm
