#ifndef DTRUN_RUNTIME_NAMED_NEWS_ROUND_H_
#define DTRUN_RUNTIME_NAMED_NEWS_ROUND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/communicator/communicator_base.h"
#include "runtime/named/named_request.h"

namespace dtrun::runtime::named {

/// Every rank tells every other its news, again and again: see news_round.cc. Not thread-safe.
class Round {
 public:
  /// Collective over the ranks of `communicator`, of which it takes a duplicate.
  explicit Round(ops::Communicator& communicator);
  ~Round();

  bool under_way() const { return phase_ != Phase::kIdle; }
  /// Others may have begun one.
  bool MayBeAwaited() const { return communicator_->MayBeAwaited(); }
  bool RingsWhenAwaited() const { return communicator_->RingsWhenAwaited(); }
  const ops::Members& members() const { return communicator_->members(); }

  void Begin(const std::string& news);
  /// What all ranks told, by rank, when the round has ended; until the next one. Throws its error.
  std::optional<std::vector<std::string_view>> Advance();
  /// What a report says that a round is for, asked for at most once in each.
  void SetPurpose(std::function<std::string()> purpose);

 private:
  enum class Phase { kIdle, kGathering, kGatheringRest };
  // What ranks tell each other; kept for a round that this object does not see the end of.
  struct Records : ops::Memory {
    Records() : Memory(nullptr, 0) {}
    std::string mine, all, rest, rests;
    std::vector<std::string> whole;
  };

  std::unique_ptr<ops::Communicator> communicator_;
  size_t size_;
  Phase phase_ = Phase::kIdle;
  std::unique_ptr<Records> records_ = std::make_unique<Records>();
  ops::Work work_;
  bool has_purpose_ = false;
};

struct Part;

/// What was submitted last, as it is told: nothing, the last new name of this round, or a place.
inline constexpr uint64_t kNoLast = 0, kLastIsNew = 1, kFirstLastSlot = 2;

/// Why a rank waits no more: after so many seconds, or because a rank of the set has left.
struct Impatience {
  int64_t after_s = 0;
  std::optional<int> leaver = std::nullopt;
};

/// What a rank has to tell in its next round: see news_round.cc. Not thread-safe.
class Announcements {
 public:
  /// Of this rank, whose table gives so many names a place.
  Announcements(int rank, size_t cache_capacity);

  /// A part that the rank has submitted.
  void Add(Part& part) { parts_.push_back(&part); }
  void Join() { joins_ = true; }
  /// It waits no more for that tensor, or for the others to join ("").
  void Withdraw(std::string name, Impatience why) { withdrawn_.emplace_back(std::move(name), why); }
  bool empty() const { return parts_.empty() && !joins_ && withdrawn_.empty(); }

  /// All of it, for the others; from here on it is told. Until the next call.
  const std::string& Take();

 private:
  int rank_;
  std::vector<Part*> parts_;
  bool joins_ = false;
  std::vector<std::pair<std::string, Impatience>> withdrawn_;
  std::vector<uint64_t> bits_;  // of places, while it is written
  ByteWriter news_;
};

}  // namespace dtrun::runtime::named

#endif  // DTRUN_RUNTIME_NAMED_NEWS_ROUND_H_
