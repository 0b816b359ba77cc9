// Apply reads the news of a round (news_round.cc) in three passes over the ranks: known names, new
// names, and the rest. A new name gets a place in the cache if there is one. The passes make all
// ranks give places in the same order. They also keep the place of each name that a rank announced
// in this round by its number.
//
// Then a tensor is ready if all ranks have announced it. A rank that has joined counts as
// announced.
//
// The cache gives up the name that was done longest ago, but only after at least two capacities of
// other names were done. So a program that cycles through a few more names than there are places
// keeps the names in the cache. Otherwise, each name would lose its place before its next use.

#include "runtime/named/tensor_table.h"

#include <algorithm>

#include "base/text.h"
#include "runtime/named/named_request.h"

namespace dtrun::runtime::named {

using base::Text;

int Ready::participant_count() const {
  if (participants.empty()) return static_cast<int>(requests->by_rank.size());
  return static_cast<int>(std::count(participants.begin(), participants.end(), 1));
}

const Request& Ready::request() const {
  int rank = 0;
  while (!Participates(rank)) ++rank;
  return request(rank);
}

struct TensorTable::Source {
  int rank;
  ByteReader reader;
  uint64_t last = kNoLast;
  const Tensor* last_new = nullptr;
};

TensorTable::TensorTable(ops::Members members, int rank, size_t cache_capacity)
    : members_(std::move(members)),
      rank_(rank),
      size_(static_cast<int>(members_.world_ranks.size())),
      capacity_(cache_capacity),
      announcements_(rank, cache_capacity),
      joined_(members_.world_ranks.size()),
      last_(members_.world_ranks.size()) {}

Tensor& TensorTable::At(std::string_view name) {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const auto made = tensors_.try_emplace(std::string(name)).first;
  Tensor& tensor = made->second;
  tensor.name = made->first;
  tensor.requests = std::make_shared<Requests>();
  tensor.requests->by_rank.resize(static_cast<size_t>(size_));
  tensor.announced.resize(static_cast<size_t>(size_));
  return tensor;
}

void TensorTable::Release(Tensor& tensor) {
  if (tensor.slot >= 0 || tensor.pending || tensor.mine != nullptr) return;
  tensors_.erase(tensors_.find(tensor.name));
}

std::vector<Part*> TensorTable::MyParts() const {
  std::vector<Part*> parts;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.mine != nullptr) parts.push_back(tensor.mine);
  }
  return parts;
}

// --- the news of all ranks ----------------------------------------------------------------------

Outcome TensorTable::Apply(const std::vector<std::string_view>& news) {
  std::vector<Source> sources;
  for (int r = 0; r < size_; ++r) {
    sources.push_back({.rank = r, .reader = ByteReader(news[static_cast<size_t>(r)])});
  }
  for (Source& source : sources) ReadKnown(source);
  for (Source& source : sources) ReadNew(source);
  withdrawals_.clear();
  for (Source& source : sources) ReadRest(source);
  Outcome outcome;
  CollectReady(outcome);
  JudgeReady(outcome);
  if (!withdrawals_.empty()) CollectWithdrawn(outcome);
  if (joined_count_ == size_) EndJoins(outcome);
  return outcome;
}

Tensor& TensorTable::InSlot(uint64_t slot) const {
  if (slot < slots_.size() && slots_[slot] != nullptr) return *slots_[slot];
  throw Error(ErrorCode::kSystem, "named queue: a rank announced a name that is not in the cache");
}

void TensorTable::ReadKnown(Source& source) {
  uint64_t slot = 0;
  while (const uint64_t run = source.reader.Number()) {
    slot += source.reader.Number();
    for (const uint64_t end = slot + run; slot < end; ++slot) Enter(InSlot(slot), source.rank);
  }
  for (uint64_t n = source.reader.Number(); n > 0; --n) {
    Tensor& tensor = InSlot(source.reader.Number());
    Replace(tensor, source.rank, ReadRequest(source.reader));
    Enter(tensor, source.rank);
  }
}

void TensorTable::ReadNew(Source& source) {
  for (uint64_t n = source.reader.Number(); n > 0; --n) {
    Tensor& tensor = At(source.reader.Name());
    Replace(tensor, source.rank, ReadRequest(source.reader));
    Enter(tensor, source.rank);
    if (tensor.slot < 0) GiveSlot(tensor);
    source.last_new = &tensor;
  }
}

void TensorTable::ReadRest(Source& source) {
  const uint64_t last = source.reader.Number();
  const Tensor* tensor = last == kLastIsNew       ? source.last_new
                         : last >= kFirstLastSlot ? &InSlot(last - kFirstLastSlot)
                                                  : nullptr;
  const auto r = static_cast<size_t>(source.rank);
  if (tensor != nullptr) last_[r] = {std::string(tensor->name), tensor->requests->by_rank[r]};
  if (source.reader.Number() != 0 && joined_[r] == 0) {
    joined_[r] = 1;
    ++joined_count_;
    last_joined_ = source.rank;
  }
  for (uint64_t n = source.reader.Number(); n > 0; --n) {
    const std::string name(source.reader.Name());
    Impatience why{.after_s = static_cast<int64_t>(source.reader.Number())};
    const uint64_t leaver = source.reader.Number();
    if (leaver > static_cast<uint64_t>(size_))
      throw Error(ErrorCode::kSystem, "named queue: a rank that is not in the set has left");
    if (leaver > 0) why.leaver = static_cast<int>(leaver - 1);
    withdrawals_.push_back({name, source.rank, why});
  }
}

void TensorTable::Enter(Tensor& tensor, int rank) {
  uint8_t& announced = tensor.announced[static_cast<size_t>(rank)];
  if (announced != 0) {
    throw Error(ErrorCode::kSystem, "named queue: a rank announced a name twice");
  }
  announced = 1;
  ++tensor.announced_count;
  if (rank == rank_) ++my_pending_;
  if (tensor.pending) return;
  tensor.pending = true;
  pending_.push_back(&tensor);
}

void TensorTable::Replace(Tensor& tensor, int rank, Request request) {
  // Operations that were agreed on with the old requests keep them.
  if (tensor.requests.use_count() > 1) {
    tensor.requests = std::make_shared<Requests>(*tensor.requests);
  }
  Requests& requests = *tensor.requests;
  requests.judged = false;
  requests.refusal.reset();
  std::shared_ptr<const Request>& mine = requests.by_rank[static_cast<size_t>(rank)];
  if (rank == rank_ && tensor.mine != nullptr) {
    mine = tensor.mine->request;  // so that an equal request is the same object next time
    return;
  }
  // Ranks mostly request the same, so they share one object.
  for (const auto& other : requests.by_rank) {
    if (other == nullptr || *other != request) continue;
    mine = other;
    return;
  }
  mine = std::make_shared<const Request>(std::move(request));
}

void TensorTable::GiveSlot(Tensor& tensor) {
  if (slots_.size() < capacity_) {
    tensor.slot = static_cast<int32_t>(slots_.size());
    slots_.push_back(&tensor);
    return;
  }
  Tensor* oldest = nullptr;
  for (Tensor* other : slots_) {
    if (other->announced_count > 0) continue;
    if (oldest == nullptr || other->last_used < oldest->last_used) oldest = other;
  }
  if (oldest == nullptr || done_ - oldest->last_used < 2 * capacity_) return;
  tensor.slot = std::exchange(oldest->slot, -1);
  slots_[static_cast<size_t>(tensor.slot)] = &tensor;
  Release(*oldest);
}

// --- outcome ------------------------------------------------------------------------------------

bool TensorTable::IsComplete(const Tensor& tensor) const {
  if (tensor.announced_count == size_) return true;
  if (joined_count_ == 0) return false;
  for (size_t r = 0; r < joined_.size(); ++r) {
    if (tensor.announced[r] == 0 && joined_[r] == 0) return false;
  }
  return true;
}

// From here on, ranks may announce the tensor again.
void TensorTable::Leave(Tensor& tensor) {
  if (tensor.announced[static_cast<size_t>(rank_)] != 0) --my_pending_;
  std::fill(tensor.announced.begin(), tensor.announced.end(), uint8_t{0});
  tensor.announced_count = 0;
  tensor.pending = false;
  tensor.last_used = ++done_;
}

void TensorTable::CollectReady(Outcome& outcome) {
  outcome.ready.reserve(pending_.size());
  size_t kept = 0;
  for (Tensor* tensor : pending_) {
    if (!IsComplete(*tensor)) {
      pending_[kept++] = tensor;
      continue;
    }
    const bool all = tensor->announced_count == size_;
    outcome.ready.push_back(
        {tensor, tensor->requests, all ? std::vector<uint8_t>{} : tensor->announced});
    Leave(*tensor);
  }
  pending_.resize(kept);
}

std::optional<Refusal> TensorTable::JudgeOne(const Ready& ready) {
  if (ready.participants.empty()) {
    Requests& requests = *ready.tensor->requests;
    if (!requests.judged) {
      requests.refusal = Judge(ready.tensor->name, requests.by_rank, members_);
      requests.judged = true;
    }
    return requests.refusal;
  }
  std::vector<std::shared_ptr<const Request>> by_rank = ready.requests->by_rank;
  for (int r = 0; r < size_; ++r) {
    if (!ready.Participates(r)) by_rank[static_cast<size_t>(r)] = nullptr;
  }
  return Judge(ready.tensor->name, by_rank, members_);
}

void TensorTable::JudgeReady(Outcome& outcome) {
  bool refused = false;
  for (const Ready& ready : outcome.ready) refused |= JudgeOne(ready).has_value();
  if (refused) Refuse(outcome);
  for (Ready& ready : outcome.ready) {
    Tensor* const tensor = ready.tensor;
    if (tensor->mine != nullptr) continue;
    ready.tensor = nullptr;
    Release(*tensor);
  }
}

// Returns true if some rank has submitted both tensors in one group.
bool TensorTable::ShareGroup(const Ready& one, const Ready& other) const {
  for (int r = 0; r < size_; ++r) {
    if (!one.Participates(r) || !other.Participates(r)) continue;
    if (one.request(r).group != 0 && one.request(r).group == other.request(r).group) return true;
  }
  return false;
}

// If a tensor is refused, its group is refused on every rank that submitted it in a group.
void TensorTable::Refuse(Outcome& outcome) {
  std::vector<std::optional<Refusal>> refusals;
  std::vector<size_t> spreading;
  for (const Ready& ready : outcome.ready) {
    refusals.push_back(JudgeOne(ready));
    if (refusals.back()) spreading.push_back(refusals.size() - 1);
  }
  while (!spreading.empty()) {
    const size_t i = spreading.back();
    spreading.pop_back();
    for (size_t j = 0; j < refusals.size(); ++j) {
      if (refusals[j] || !ShareGroup(outcome.ready[i], outcome.ready[j])) continue;
      refusals[j] = refusals[i];
      spreading.push_back(j);
    }
  }
  std::vector<Ready> accepted;
  for (size_t i = 0; i < refusals.size(); ++i) {
    Ready& ready = outcome.ready[i];
    if (!refusals[i]) {
      accepted.push_back(std::move(ready));
      continue;
    }
    for (int r = 0; r < size_; ++r) {
      if (ready.Participates(r)) FailGroup(ready.request(r).group, r, *refusals[i], outcome);
    }
    if (ready.tensor->mine != nullptr) outcome.failed.push_back({ready.tensor->mine, *refusals[i]});
    Release(*ready.tensor);
  }
  outcome.ready = std::move(accepted);
}

// Fails the pending tensors of a group of rank `rank` that has failed.
void TensorTable::FailGroup(uint64_t group, int rank, const Refusal& refusal, Outcome& outcome) {
  if (group == 0) return;
  const auto r = static_cast<size_t>(rank);
  const auto in_group = [&](const Tensor* tensor) {
    return tensor->announced[r] != 0 && tensor->requests->by_rank[r]->group == group;
  };
  // Each failed tensor may fail other tensors, so the search restarts.
  for (;;) {
    const auto next = std::find_if(pending_.begin(), pending_.end(), in_group);
    if (next == pending_.end()) return;
    Fail(**next, refusal, outcome);
  }
}

void TensorTable::Fail(Tensor& tensor, const Refusal& refusal, Outcome& outcome) {
  std::vector<std::pair<uint64_t, int>> groups;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (tensor.announced[i] == 0) continue;
    groups.emplace_back(tensor.requests->by_rank[i]->group, r);
    if (r == rank_ && tensor.mine != nullptr) outcome.failed.push_back({tensor.mine, refusal});
  }
  pending_.erase(std::find(pending_.begin(), pending_.end(), &tensor));
  Leave(tensor);
  Release(tensor);
  for (const auto& [group, rank] : groups) FailGroup(group, rank, refusal, outcome);
}

// The joins of one round are withdrawn together: none of these ranks is missing for another.
void TensorTable::CollectWithdrawnJoins(Outcome& outcome) {
  if (joined_count_ == size_) return;
  const std::string waited = DescribeJoin();
  const std::vector<int> missing = members_.InWorld(NotJoined());
  for (const Withdrawal& withdrawal : withdrawals_) {
    const auto r = static_cast<size_t>(withdrawal.rank);
    if (!withdrawal.name.empty() || joined_[r] == 0) continue;
    if (withdrawal.rank == rank_) {
      outcome.join_refused = Refusal{
          withdrawal.why.leaver ? ErrorCode::kPeerLost : ErrorCode::kTimeout,
          GaveUp(withdrawal, waited), missing};
    }
    joined_[r] = 0;
    --joined_count_;
  }
}

void TensorTable::CollectWithdrawn(Outcome& outcome) {
  CollectWithdrawnJoins(outcome);
  for (const Withdrawal& withdrawal : withdrawals_) {
    if (withdrawal.name.empty()) continue;
    const auto found = tensors_.find(withdrawal.name);
    // The tensor may have become ready in this round, or another rank may have withdrawn it.
    if (found == tensors_.end() || !found->second.pending) continue;
    Tensor& tensor = found->second;
    if (tensor.announced[static_cast<size_t>(withdrawal.rank)] == 0) continue;
    Fail(
        tensor,
        {withdrawal.why.leaver ? ErrorCode::kPeerLost : ErrorCode::kTimeout,
         GaveUp(withdrawal, DescribeWait(tensor)), members_.InWorld(MissingOf(tensor))},
        outcome);
  }
}

// `waited` describes the wait.
std::string TensorTable::GaveUp(const Withdrawal& withdrawal, const std::string& waited) const {
  const Impatience& why = withdrawal.why;
  if (!why.leaver) return Text("gave up after ", why.after_s, " s: ", waited);
  return Text("gave up: ", waited, "; ", members_.List({*why.leaver}), " has called Shutdown");
}

void TensorTable::EndJoins(Outcome& outcome) {
  outcome.last_joined = last_joined_;
  std::fill(joined_.begin(), joined_.end(), uint8_t{0});
  joined_count_ = 0;
}

// --- messages -----------------------------------------------------------------------------------

// Ranks with the same last submission are listed together.
std::string TensorTable::LastOf(const std::vector<int>& ranks) const {
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  for (const int rank : ranks) {
    const Last& last = last_[static_cast<size_t>(rank)];
    const std::string text =
        last.request == nullptr
            ? "submitted nothing so far"
            : Text("submitted '", last.name, "' last, ", Describe(*last.request, members_));
    const auto same = std::find_if(
        sides.begin(), sides.end(), [&](const auto& side) { return side.first == text; });
    if (same == sides.end()) {
      sides.push_back({text, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string text;
  for (const auto& [what, which] : sides) text += Text("; ", members_.List(which), ' ', what);
  return text;
}

std::vector<int> TensorTable::MissingOf(const Tensor& tensor) const {
  std::vector<int> missing;
  for (const int rank : NotJoined())
    if (tensor.announced[static_cast<size_t>(rank)] == 0) missing.push_back(rank);
  return missing;
}

std::vector<int> TensorTable::NotJoined() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (joined_[static_cast<size_t>(r)] == 0) ranks.push_back(r);
  }
  return ranks;
}

std::string TensorTable::DescribeWait(const Tensor& tensor) const {
  const std::vector<int> missing = MissingOf(tensor);
  std::vector<int> here;
  std::shared_ptr<const Request> request;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (tensor.announced[i] == 0) continue;
    here.push_back(r);
    if (request == nullptr) request = tensor.requests->by_rank[i];
  }
  return Text(
      "tensor '", tensor.name, "', ", request == nullptr ? "" : Describe(*request, members_),
      ", submitted by ", members_.List(here), ", waits for ", members_.List(missing),
      LastOf(missing));
}

std::string TensorTable::DescribeJoin() const {
  const std::vector<int> missing = NotJoined();
  return Text("join waits for ", members_.List(missing), LastOf(missing));
}

}  // namespace dtrun::runtime::named
