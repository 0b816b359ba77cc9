// An entry is a word (1: this rank is here) and the rank's bytes. The entries of a host lie one
// after the other in the order of its ranks, the hosts' blocks in the order of the hosts:
//
//   in       all-gather within the host: its block
//   across   all-gather between the leaders: all blocks
//   out      the leader broadcasts them within its host
//
// A leader whose host is not complete sends, when its patience is over, a block that says who is
// here. The others then know who is not, and try again at once; that leader tries again when its
// host is complete, or after twice as long. A follower takes what the leader hands out until it is
// complete; in between that may be word of a host from which nothing has come at all.

#include "ops/hierarchical/exchange.h"

#include <algorithm>
#include <cstring>

namespace dtrun::ops::hierarchical {
namespace {

constexpr uint64_t kHere = 1;
constexpr base::Duration kFirstPatience = std::chrono::milliseconds(200);
constexpr base::Duration kLongestPatience = std::chrono::seconds(20);

Buffer BytesOf(std::string& bytes) { return Buffer(bytes.data(), bytes.size(), DType::kU8); }

}  // namespace

Exchange::Exchange(Group& group, const std::string& mine)
    : group_(group),
      entry_bytes_(sizeof kHere + mine.size()),
      mine_(reinterpret_cast<const char*>(&kHere), sizeof kHere),
      host_block_(entry_bytes_ * static_cast<uint64_t>(group.local_size()), '\0'),
      patient_until_(group.engine.clock().Now() + kFirstPatience),
      patience_(kFirstPatience) {
  mine_ += mine;
  uint64_t offset = 0;
  for (int h = 0; h < group.hosts.host_count(); ++h) {
    host_offsets_.push_back(offset);
    offset += entry_bytes_ * static_cast<uint64_t>(group.hosts.local_size(h));
  }
  host_offsets_.push_back(offset);
  in_ = group_.calls->StartAllGather(BytesOf(mine_), BytesOf(host_block_));
  if (!group_.leads()) StartHandingOut(attempts_.emplace_back());
}

bool Exchange::Advance() {
  while (group_.leads() ? LeaderAdvance() : FollowerAdvance()) {
  }
  const auto handed_out = [](const Attempt& a) { return a.handed_out && a.out.Done(); };
  return complete_ && in_.Done() &&
         std::all_of(announcements_.begin(), announcements_.end(), handed_out) &&
         std::all_of(attempts_.begin(), attempts_.end(), handed_out);
}

bool Exchange::LeaderAdvance() {
  if (complete_) return false;
  if (attempts_.empty() || attempts_.back().crossed) {
    if (in_.Done()) {
      StartCrossing(host_block_);
    } else if (!in_.Missing().empty() && PatienceIsOver()) {
      StartCrossing(WhoIsHere());
    } else {
      return false;
    }
  }
  Attempt& attempt = attempts_.back();
  if (!attempt.across.Done()) return AnnounceSilentHosts(attempt);
  attempt.crossed = true;
  complete_ = IsComplete(attempt);
  StartHandingOut(attempt);
  return true;
}

bool Exchange::PatienceIsOver() {
  if (group_.engine.clock().Now() < patient_until_) return false;
  patience_ = std::min(2 * patience_, kLongestPatience);
  patient_until_ = group_.engine.clock().Now() + patience_;
  return true;
}

bool Exchange::AnnounceSilentHosts(const Attempt& attempt) {
  if (told_ || !PatienceIsOver()) return false;
  const std::vector<int> silent = SilentLeaders(attempt);
  if (silent.empty() || silent == announced_) return false;
  announced_ = silent;
  Attempt& announcement = announcements_.emplace_back();
  announcement.all.resize(host_offsets_.back());
  for (int r = 0; r < group_.hosts.size(); ++r) {
    if (std::find(silent.begin(), silent.end(), r) != silent.end()) continue;
    std::memcpy(announcement.all.data() + OffsetOf(r), &kHere, sizeof kHere);
  }
  StartHandingOut(announcement);
  return true;
}

bool Exchange::FollowerAdvance() {
  if (complete_ || !attempts_.back().out.Done()) return false;
  complete_ = IsComplete(attempts_.back());
  if (!complete_) StartHandingOut(attempts_.emplace_back());
  return true;
}

void Exchange::StartCrossing(std::string block) {
  Attempt& attempt = attempts_.emplace_back();
  attempt.sent = std::move(block);
  attempt.all.resize(host_offsets_.back());
  Counts counts;
  for (size_t h = 0; h + 1 < host_offsets_.size(); ++h) {
    counts.push_back(host_offsets_[h + 1] - host_offsets_[h]);
  }
  attempt.across =
      group_.leaders->StartAllGather(BytesOf(attempt.sent), BytesOf(attempt.all), counts);
}

void Exchange::StartHandingOut(Attempt& attempt) {
  attempt.handed_out = true;
  attempt.all.resize(host_offsets_.back());
  attempt.out = group_.calls->StartBroadcast(BytesOf(attempt.all), 0);
}

bool Exchange::IsComplete(const Attempt& attempt) {
  absent_.clear();
  for (int r = 0; r < group_.hosts.size(); ++r) {
    uint64_t here = 0;
    std::memcpy(&here, attempt.all.data() + OffsetOf(r), sizeof here);
    if (here != kHere) absent_.push_back(r);
  }
  told_ = true;
  return absent_.empty();
}

std::string Exchange::WhoIsHere() const {
  const std::vector<int> missing = in_.Missing();
  std::string block(host_block_.size(), '\0');
  for (int l = 0; l < group_.local_size(); ++l) {
    if (std::find(missing.begin(), missing.end(), l) != missing.end()) continue;
    std::memcpy(block.data() + entry_bytes_ * static_cast<uint64_t>(l), &kHere, sizeof kHere);
  }
  return block;
}

std::vector<int> Exchange::SilentLeaders(const Attempt& attempt) const {
  std::vector<int> leaders;
  for (const int host : attempt.across.Missing()) leaders.push_back(group_.hosts.ranks(host)[0]);
  return leaders;
}

uint64_t Exchange::OffsetOf(int rank) const {
  return host_offsets_[static_cast<size_t>(group_.hosts.host(rank))] +
         entry_bytes_ * static_cast<uint64_t>(group_.hosts.local_rank(rank));
}

const char* Exchange::of(int rank) const {
  return attempts_.back().all.data() + OffsetOf(rank) + sizeof kHere;
}

std::vector<int> Exchange::Missing() const {
  std::vector<int> missing;
  // Of this host the present is known, of the others what they said last.
  for (const int l : in_.Missing()) {
    missing.push_back(group_.hosts.ranks(group_.host)[static_cast<size_t>(l)]);
  }
  for (const int rank : absent_) {
    if (!group_.on_this_host(rank)) missing.push_back(rank);
  }
  if (!told_ && !attempts_.empty()) {
    for (const int leader : SilentLeaders(attempts_.back())) missing.push_back(leader);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

void Exchange::Abandon() {
  in_.Abandon();
  for (Attempt& attempt : attempts_) {
    attempt.across.Abandon();
    attempt.out.Abandon();
  }
  for (Attempt& announcement : announcements_) announcement.out.Abandon();
}

}  // namespace dtrun::ops::hierarchical
