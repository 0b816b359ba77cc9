// A round is one all-gather of a record per rank. A record has a fixed size. It holds the length of
// the rank's news and the first bytes of the news. If news is longer than a record, the rest
// follows in a second all-gather. All ranks know its counts from the first one.

#include "runtime/named/news_round.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/named/named_request.h"
#include "runtime/named/tensor_table.h"

namespace dtrun::runtime::named {
namespace {

constexpr size_t kRecordBytes = 256;
constexpr size_t kHeadBytes = 4;
constexpr size_t kInRecord = kRecordBytes - kHeadBytes;

}  // namespace

Round::Round(ops::Communicator& communicator)
    : communicator_(communicator.Duplicate()), size_(static_cast<size_t>(communicator.size())) {
  records_->mine.resize(kRecordBytes);
  records_->all.resize(kRecordBytes * size_);
}

// Peers may still read or write the records of a round that is under way.
Round::~Round() {
  if (under_way()) ops::Keep(std::move(records_));
}

void Round::Begin(const std::string& news) {
  const auto bytes = static_cast<uint32_t>(news.size());
  std::memcpy(records_->mine.data(), &bytes, kHeadBytes);
  std::memcpy(records_->mine.data() + kHeadBytes, news.data(), std::min(news.size(), kInRecord));
  records_->rest = news.size() > kInRecord ? news.substr(kInRecord) : "";
  work_ = communicator_->StartAllGather(
      Buffer(records_->mine.data(), records_->mine.size(), DType::kU8),
      Buffer(records_->all.data(), records_->all.size(), DType::kU8));
  has_purpose_ = false;
  phase_ = Phase::kGathering;
}

std::optional<std::vector<std::string_view>> Round::Advance() {
  if (!under_way() || !work_.Done()) return std::nullopt;
  std::vector<uint64_t> rests(size_);
  std::vector<std::string_view> news(size_);
  uint64_t all = 0;
  for (size_t r = 0; r < size_; ++r) {
    const char* record = records_->all.data() + r * kRecordBytes;
    uint32_t bytes = 0;
    std::memcpy(&bytes, record, kHeadBytes);
    news[r] = std::string_view(record + kHeadBytes, std::min<size_t>(bytes, kInRecord));
    rests[r] = bytes - news[r].size();
    all += rests[r];
  }
  if (all > 0 && phase_ == Phase::kGathering) {
    records_->rests.resize(all);
    work_ = communicator_->StartAllGather(
        Buffer(records_->rest.data(), records_->rest.size(), DType::kU8),
        Buffer(records_->rests.data(), all, DType::kU8), rests);
    phase_ = Phase::kGatheringRest;
    if (!work_.Done()) return std::nullopt;
  }
  phase_ = Phase::kIdle;
  if (all == 0) return news;
  records_->whole.clear();
  size_t begin = 0;
  for (size_t r = 0; r < size_; ++r) {
    records_->whole.push_back(std::string(news[r]) + records_->rests.substr(begin, rests[r]));
    begin += rests[r];
  }
  return std::vector<std::string_view>(records_->whole.begin(), records_->whole.end());
}

void Round::SetPurpose(std::function<std::string()> purpose) {
  if (!under_way() || has_purpose_) return;
  has_purpose_ = true;
  work_.SetPurpose(std::move(purpose));
}

// The news of a rank has three parts, in this order:
//
//   1  known names: the places of names in the cache, with the request if it has changed
//   2  new names, which have no place in the cache, with the request
//   3  the rest: the last submission, a join, and the tensors that it no longer waits for

Announcements::Announcements(int rank, size_t cache_capacity)
    : rank_(rank), bits_((cache_capacity + 63) / 64) {}

const std::string& Announcements::Take() {
  news_.Clear();
  std::vector<const Part*> changed, unknown;
  uint64_t last = kNoLast;
  size_t words = 0;
  for (Part* part : parts_) {
    const Tensor& tensor = *part->tensor;
    if (tensor.slot < 0) {
      unknown.push_back(part);
      last = kLastIsNew;
      continue;
    }
    const auto slot = static_cast<uint64_t>(tensor.slot);
    last = kFirstLastSlot + slot;
    if (part->request != tensor.requests->by_rank[static_cast<size_t>(rank_)]) {
      changed.push_back(part);
      continue;
    }
    bits_[slot / 64] |= uint64_t{1} << slot % 64;
    words = std::max<size_t>(words, slot / 64 + 1);
  }
  // Writes the bits as runs: the number of set bits, after the number of clear bits before them.
  uint64_t gap = 0, run = 0;
  const auto end_run = [&] {
    if (run == 0) return;
    news_.Number(run);
    news_.Number(gap);
    gap = run = 0;
  };
  for (size_t w = 0; w < words; ++w) {
    for (uint64_t bit = 0; bit < 64; ++bit) {
      if ((bits_[w] >> bit & 1) != 0) {
        ++run;
      } else {
        end_run();
        ++gap;
      }
    }
    bits_[w] = 0;
  }
  end_run();
  news_.Number(0);
  news_.Number(changed.size());
  for (const Part* part : changed) {
    news_.Number(static_cast<uint64_t>(part->tensor->slot));
    Write(*part->request, news_);
  }
  news_.Number(unknown.size());
  for (const Part* part : unknown) {
    news_.Name(part->tensor->name);
    Write(*part->request, news_);
  }
  news_.Number(last);
  news_.Number(joins_ ? 1 : 0);
  news_.Number(withdrawn_.size());
  for (const auto& [name, why] : withdrawn_) {
    news_.Name(name);
    news_.Number(static_cast<uint64_t>(why.after_s));
    news_.Number(why.leaver ? static_cast<uint64_t>(*why.leaver) + 1 : 0);
  }
  parts_.clear();
  withdrawn_.clear();
  joins_ = false;
  return news_.bytes();
}

}  // namespace dtrun::runtime::named
