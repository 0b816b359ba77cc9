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

/// A repeated all-gather in which every rank tells its news to every rank; see news_round.cc. Not
/// thread-safe.
class Round {
 public:
  /// Collective over the ranks of `communicator`. Uses a duplicate of it.
  explicit Round(ops::Communicator& communicator);
  ~Round();

  bool under_way() const { return phase_ != Phase::kIdle; }
  /// True if other ranks may have begun a round.
  bool MayBeAwaited() const { return communicator_->MayBeAwaited(); }
  bool RingsWhenAwaited() const { return communicator_->RingsWhenAwaited(); }
  const ops::Members& members() const { return communicator_->members(); }

  void Begin(const std::string& news);
  /// Returns the news of all ranks, by rank, once the round has ended. Otherwise returns nullopt.
  /// The news is valid until the next round. Throws the error of the round.
  std::optional<std::vector<std::string_view>> Advance();
  /// Adds a text about the round's purpose to stall reports. Only the first call in a round has an
  /// effect.
  void SetPurpose(std::function<std::string()> purpose);

 private:
  enum class Phase { kIdle, kGathering, kGatheringRest };
  // The data that ranks exchange. It outlives this object if a round is still under way.
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

/// The last submission of a rank in its news: none, the last new name of this round, or a place in
/// the cache (kFirstLastSlot + place).
inline constexpr uint64_t kNoLast = 0, kLastIsNew = 1, kFirstLastSlot = 2;

/// Why a rank stops waiting: it waited for `after_s` seconds, or `leaver`, a rank of the set, has
/// left.
struct Impatience {
  int64_t after_s = 0;
  std::optional<int> leaver = std::nullopt;
};

/// The news of a rank for its next round; see news_round.cc. Not thread-safe.
class Announcements {
 public:
  /// `rank` is this rank. `cache_capacity` is the number of places in its table's cache.
  Announcements(int rank, size_t cache_capacity);

  /// Adds a part that this rank has submitted.
  void Add(Part& part) { parts_.push_back(&part); }
  void Join() { joins_ = true; }
  /// Adds that this rank waits no longer for the tensor `name`, or for the other ranks to join
  /// ("").
  void Withdraw(std::string name, Impatience why) { withdrawn_.emplace_back(std::move(name), why); }
  bool empty() const { return parts_.empty() && !joins_ && withdrawn_.empty(); }

  /// Returns all news as bytes, and forgets it. The bytes are valid until the next call.
  const std::string& Take();

 private:
  int rank_;
  std::vector<Part*> parts_;
  bool joins_ = false;
  std::vector<std::pair<std::string, Impatience>> withdrawn_;
  std::vector<uint64_t> bits_;  // by place; used while Take writes
  ByteWriter news_;
};

}  // namespace dtrun::runtime::named

#endif  // DTRUN_RUNTIME_NAMED_NEWS_ROUND_H_
