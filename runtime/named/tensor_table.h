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

/// The latest request of each rank under one name. Shared by all operations that were agreed on
/// with these requests. If it is shared, a changed request makes a new object.
struct Requests {
  std::vector<std::shared_ptr<const Request>> by_rank;
  bool judged = false;  ///< true: `refusal` is the verdict on all requests
  std::optional<Refusal> refusal = std::nullopt;
};

/// A name that is announced, has a place in the cache, or has a part of this rank.
struct Tensor {
  std::string_view name;  ///< owned by the table
  int32_t slot = -1;      ///< its place in the cache; -1: none
  std::shared_ptr<Requests> requests;
  std::vector<uint8_t> announced;  ///< by rank: announced and not done yet
  int announced_count = 0;
  bool pending = false;    ///< in the table's list of pending tensors
  uint64_t last_used = 0;  ///< number of names done when this name was last done
  Part* mine = nullptr;    ///< this rank's part, until it is done here
};

/// A tensor that all ranks have announced, except ranks that have joined, with requests that fit
/// together.
struct Ready {
  Tensor* tensor;  ///< null unless this rank has submitted it
  std::shared_ptr<const Requests> requests;
  std::vector<uint8_t> participants;  ///< by rank; empty: all

  bool Participates(int rank) const {
    return participants.empty() || participants[static_cast<size_t>(rank)] != 0;
  }
  int participant_count() const;
  /// The request of any rank that takes part.
  const Request& request() const;
  const Request& request(int rank) const { return *requests->by_rank[static_cast<size_t>(rank)]; }
};

/// A tensor that fails on every rank that submitted it.
struct Failed {
  Part* part;  ///< this rank's
  Refusal refusal;
};

/// The result of one round of announcements. The same on all ranks, except that the parts are this
/// rank's.
struct Outcome {
  std::vector<Ready> ready;
  std::vector<Failed> failed;
  std::optional<int> last_joined;       ///< the last rank that joined; set once all have joined
  std::optional<Refusal> join_refused;  ///< set if this rank's join was withdrawn
};

/// The tensors that ranks of a process set have announced and that are not done. Every rank has a
/// table and feeds it with the same rounds. So all tables are equal at any time, and a name with a
/// place in the cache can be announced by the number of that place. Pure, except for the parts of
/// its own rank, to which it points. Not thread-safe.
class TensorTable {
 public:
  /// `cache_capacity` is the number of names that can have a place at a time.
  TensorTable(ops::Members members, int rank, size_t cache_capacity);

  /// Returns the tensor of that name. Creates it if there is none.
  Tensor& At(std::string_view name);
  /// Forgets the tensor unless it is pending, has a place in the cache, or has a part of this rank.
  void Release(Tensor& tensor);

  /// These add to this rank's news for the next round. Announce: a part that it has submitted.
  /// AnnounceJoin: its join. Withdraw: it waits no longer for a tensor or, if null, for the other
  /// ranks to join.
  void Announce(Part& part) { announcements_.Add(part); }
  void AnnounceJoin() { announcements_.Join(); }
  void Withdraw(const Tensor* tensor, Impatience why) {
    announcements_.Withdraw(std::string(tensor == nullptr ? "" : tensor->name), why);
  }
  bool HasNews() const { return !announcements_.empty(); }

  /// Returns this rank's news for the other ranks, and forgets it.
  const std::string& TakeNews() { return announcements_.Take(); }
  /// Applies the news that all ranks told in one round, by rank. Throws Error kSystem if the news
  /// is damaged.
  Outcome Apply(const std::vector<std::string_view>& news);

  /// The tensors that are announced and not done, oldest first.
  const std::vector<Tensor*>& pending() const { return pending_; }
  /// The number of pending tensors that this rank has announced.
  int my_pending() const { return my_pending_; }
  /// This rank's parts that are not done.
  std::vector<Part*> MyParts() const;
  bool joined(int rank) const { return joined_[static_cast<size_t>(rank)] != 0; }
  /// MissingOf: the ranks that have neither announced the tensor nor joined. NotJoined: the ranks
  /// that have not joined.
  std::vector<int> MissingOf(const Tensor& tensor) const;
  std::vector<int> NotJoined() const;
  /// Text for messages: "tensor 'x', all_reduce (f32[4], sum), submitted by rank 0, waits for rank
  /// 1; rank 1 submitted 'y' last, barrier"
  std::string DescribeWait(const Tensor& tensor) const;
  /// The same for the join of this rank.
  std::string DescribeJoin() const;
  const ops::Members& members() const { return members_; }

 private:
  // The news of one rank, while it is read.
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
  uint64_t done_ = 0;  // number of names done so far

  Announcements announcements_;
  std::vector<uint8_t> joined_;  // by rank
  int joined_count_ = 0, last_joined_ = -1;
  struct Last {
    std::string name;
    std::shared_ptr<const Request> request;
  };
  std::vector<Last> last_;  // by rank: its last submission

  // State of the round that is applied.
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
