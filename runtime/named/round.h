#ifndef DTRUN_RUNTIME_NAMED_ROUND_H_
#define DTRUN_RUNTIME_NAMED_ROUND_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/communicator.h"

namespace dtrun::runtime::named {

/// Every rank tells every other its news, again and again: see round.cc. Not thread-safe.
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

}  // namespace dtrun::runtime::named

#endif
