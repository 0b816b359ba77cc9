#ifndef DTRUN_RUNTIME_NAMED_TENSOR_TABLE_H_
#define DTRUN_RUNTIME_NAMED_TENSOR_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/collective/collective.h"
#include "runtime/named/named_request.h"
#include "runtime/named/news_round.h"

namespace dtrun::runtime::named {

struct Part;

/// What the ranks have asked for under one name, by rank: the last that each announced. Shared by
/// all operations that were agreed on with it; a change makes a new one.
struct Requests {
  std::vector<std::shared_ptr<const Request>> by_rank;
  bool judged = false;  ///< the requests of all ranks together
  std::optional<Refusal> refusal = std::nullopt;
};

/// A name that some rank has announced, or that has a place in the cache.
struct Tensor {
  std::string_view name;  ///< the table's
  int32_t slot = -1;      ///< its place in the cache; -1: none
  std::shared_ptr<Requests> requests;
  std::vector<uint8_t> announced;  ///< by rank: and not done yet
  int announced_count = 0;
  bool pending = false;    ///< in the list of those
  uint64_t last_used = 0;  ///< names done when this one was, last
  Part* mine = nullptr;    ///< what this rank has submitted, until it is done here
};

/// All ranks that take part have announced it, and what they ask for fits together.
struct Ready {
  Tensor* tensor;  ///< null unless this rank has submitted it
  std::shared_ptr<const Requests> requests;
  std::vector<uint8_t> participants;  ///< by rank; empty: all

  bool Participates(int rank) const {
    return participants.empty() || participants[static_cast<size_t>(rank)] != 0;
  }
  int participant_count() const;
  /// Of any rank that takes part.
  const Request& request() const;
  const Request& request(int rank) const { return *requests->by_rank[static_cast<size_t>(rank)]; }
};

/// It will not be done, on any rank.
struct Failed {
  Part* part;  ///< this rank's
  Refusal refusal;
};

/// What comes of one round of announcements. The same on all ranks, but for whose part it is.
struct Outcome {
  std::vector<Ready> ready;
  std::vector<Failed> failed;
  std::optional<int> last_joined;       ///< all ranks have joined: the last one
  std::optional<Refusal> join_refused;  ///< this rank's join was withdrawn
};

/// What all ranks of a process set have announced and not seen done. Every rank keeps one and
/// feeds it with the same rounds: all are the same at any time, so a name that has a place in its
/// cache can be announced by the number of that place. Pure, but for the parts of its own rank that
/// it points to. Not thread-safe.
class TensorTable {
 public:
  /// `cache_capacity`: names that have a place at a time.
  TensorTable(ops::Members members, int rank, size_t cache_capacity);

  /// The tensor of that name, made if there is none.
  Tensor& At(std::string_view name);
  /// Forgets it if nobody needs it any more.
  void Release(Tensor& tensor);

  /// This rank will announce, in its next round: a part that it has submitted, that it joins, that
  /// it waits no more for a tensor, or for the others to join (null).
  void Announce(Part& part) { announcements_.Add(part); }
  void AnnounceJoin() { announcements_.Join(); }
  void Withdraw(const Tensor* tensor, Impatience why) {
    announcements_.Withdraw(std::string(tensor == nullptr ? "" : tensor->name), why);
  }
  bool HasNews() const { return !announcements_.empty(); }

  /// The news, for the others; from here on they are told.
  const std::string& TakeNews() { return announcements_.Take(); }
  /// What all ranks told in one round, by rank. Throws Error kSystem.
  Outcome Apply(const std::vector<std::string_view>& news);

  /// Tensors that are announced and not done, oldest first.
  const std::vector<Tensor*>& pending() const { return pending_; }
  /// Of these, how many this rank has announced.
  int my_pending() const { return my_pending_; }
  /// What this rank has submitted and not seen done.
  std::vector<Part*> MyParts() const;
  bool joined(int rank) const { return joined_[static_cast<size_t>(rank)] != 0; }
  /// The ranks that have neither announced it nor joined; and those that have not joined.
  std::vector<int> MissingOf(const Tensor& tensor) const;
  std::vector<int> NotJoined() const;
  /// "all_reduce 'x' (f32[4], sum), submitted by rank 0, waits for rank 1, which submitted 'y'
  /// last"
  std::string DescribeWait(const Tensor& tensor) const;
  /// The same of the join of this rank.
  std::string DescribeJoin() const;
  const ops::Members& members() const { return members_; }

 private:
  // Of one rank, while its news are read.
  struct Source;

  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  Tensor& InSlot(uint64_t slot) const;
  void ReadKnown(Source& source);
  void ReadNew(Source& source);
  void ReadRest(Source& source);
  void Enter(Tensor& tensor, int rank);
  void Replace(Tensor& tensor, int rank, Request request);
  void GiveSlot(Tensor& tensor);
  bool IsComplete(const Tensor& tensor) const;
  void CollectReady(Outcome& outcome);
  void JudgeReady(Outcome& outcome);
  std::optional<Refusal> JudgeOne(const Ready& ready);
  bool ShareGroup(const Ready& one, const Ready& other) const;
  void Refuse(Outcome& outcome);
  void Fail(Tensor& tensor, const Refusal& refusal, Outcome& outcome);
  void FailGroup(uint64_t group, int rank, const Refusal& refusal, Outcome& outcome);
  void CollectWithdrawnJoins(Outcome& outcome);
  void CollectWithdrawn(Outcome& outcome);
  void EndJoins(Outcome& outcome);
  void Leave(Tensor& tensor);
  std::string LastOf(const std::vector<int>& ranks) const;

  ops::Members members_;
  int rank_, size_;
  size_t capacity_;
  std::unordered_map<std::string, Tensor, NameHash, std::equal_to<>> tensors_;
  std::vector<Tensor*> slots_;
  std::vector<Tensor*> pending_;
  int my_pending_ = 0;
  uint64_t done_ = 0;  // names, so far

  Announcements announcements_;
  std::vector<uint8_t> joined_;  // by rank
  int joined_count_ = 0, last_joined_ = -1;
  struct Last {
    std::string name;
    std::shared_ptr<const Request> request;
  };
  std::vector<Last> last_;  // by rank: what it submitted last

  // Of the round that is applied.
  struct Withdrawal {
    std::string name;
    int rank;
    Impatience why;
  };
  std::string GaveUp(const Withdrawal& withdrawal, const std::string& waited) const;
  std::vector<Withdrawal> withdrawals_;
};

}  // namespace dtrun::runtime::named

#endif
