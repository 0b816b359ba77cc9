// A round is one all-gather of a small record per rank: how many bytes of news the rank has, and as
// many of them as there is room for. What does not fit follows in a second all-gather, of which all
// ranks know the counts from the first.

#include "runtime/named/round.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// Peers may still read or write what is under way.
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

}  // namespace dtrun::runtime::named
