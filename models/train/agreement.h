#ifndef DTRUN_MODELS_TRAIN_AGREEMENT_H_
#define DTRUN_MODELS_TRAIN_AGREEMENT_H_

#include <dtrun/communicator.h>
#include <dtrun/error.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::models {

/// An error that every rank throws with the same text: nobody waits for anybody, the job can still
/// end with Shutdown(), and one rank is to say it.
class AgreedError : public Error {
 public:
  AgreedError(ErrorCode code, int exit_code, const std::string& message)
      : Error(code, message), exit_code_(exit_code) {}
  /// What a trainer should end with: see exit_codes.h.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// What one rank brings to an agreement.
struct Complaint {
  ErrorCode code = ErrorCode::kInvalidArgument;
  int exit_code = 0;
  std::string text;
};

/// Turns what happens on one rank into what happens on all: errors, and the wish to stop. Ranks
/// collect what they have in `Run`, `Fail` and `RequestStop`, which are local, and settle it
/// together: one all-reduce of 8 bytes when there is nothing to say. Not thread-safe.
class Agreement {
 public:
  explicit Agreement(Communicator& world) : world_(world) {}

  /// Calls `body`; what it throws is kept for Settle, with `what` in front of its text (unless
  /// empty). Not an error that every rank throws anyway, nor one after which the ranks cannot talk
  /// any more (kPeerLost, kTimeout): these are thrown on. Nothing is called after a failure. False
  /// when there is a failure.
  bool Run(const std::string& what, const std::function<void()>& body);
  /// The first complaint counts.
  void Fail(Complaint complaint);
  bool failed() const { return complaint_.has_value(); }
  void RequestStop() { stop_ = true; }

  /// Collective: whether any rank wants to stop. Throws AgreedError on all ranks when any has
  /// failed; the text names the ranks unless all say the same: "rank 2: loss is nan".
  bool Settle();

 private:
  [[noreturn]] void ThrowTogether();

  Communicator& world_;
  std::optional<Complaint> complaint_;
  bool stop_ = false;
};

/// The complaint of the lowest rank that has one, with the ranks that share it. `of_ranks` has one
/// entry per rank; at least one has a text.
///   {"", "x", "x"}  ->  "ranks 1 and 2: x"
Complaint CombineComplaints(const std::vector<Complaint>& of_ranks);

}  // namespace dtrun::models

#endif
