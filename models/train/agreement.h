#ifndef DTRUN_MODELS_TRAIN_AGREEMENT_H_
#define DTRUN_MODELS_TRAIN_AGREEMENT_H_

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/preemption.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::models {

/// The exit codes of a trainer. They are the codes that dtrun documents, some of them from
/// sysexits.h.
enum ExitCode : int {
  kSuccess = 0,
  kUsage = 2,
  kDiverged = 65,  ///< the loss is not finite
  kDataUnusable = 66,
  kInternal = 70,
  kResultNotWritten = 73,
  kSavedForLater = dtrun::kPreempted,  ///< the state was saved, because the job is going to end
  kRanksDisagree = 76,                 ///< also: a rank is lost or stalled
};

/// The exit code for an error of the runtime.
inline int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kDuplicateName:
    case ErrorCode::kDuplicateSet:
    case ErrorCode::kNotInSet: return kUsage;
    case ErrorCode::kMismatch:
    case ErrorCode::kPeerLost:
    case ErrorCode::kTimeout: return kRanksDisagree;
    case ErrorCode::kUnavailable:
    case ErrorCode::kSystem: return kInternal;
  }
  return kInternal;
}

/// An error that every rank throws with the same text. No rank waits for another rank afterwards.
/// The job can still end with Shutdown(). Print the text on one rank only.
class AgreedError : public Error {
 public:
  AgreedError(ErrorCode code, int exit_code, const std::string& message)
      : Error(code, message), exit_code_(exit_code) {}
  /// The exit code for the trainer; see ExitCode.
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The failure of one rank.
struct Complaint {
  ErrorCode code = ErrorCode::kInvalidArgument;
  int exit_code = 0;
  std::string text;
};

/// Makes the state of one rank the state of all ranks: errors, requests to stop, and notices that
/// the job is going to end. `Run`, `Fail` and `RequestStop` are local. `Settle` combines the states
/// of all ranks, with one all-reduce of 8 bytes if there is no failure. Not thread-safe.
class Agreement {
 public:
  explicit Agreement(Communicator& world) : world_(world) {}

  /// Settle looks at this notice, which outlives this object. nullptr: at none.
  void Watch(const PreemptionNotice* notice) { notice_ = notice; }

  /// Calls `body`, unless a failure is pending. Keeps an exception of `body` for Settle, with
  /// `what` and a colon before its text. Three exceptions are rethrown instead: AgreedError,
  /// because every rank throws it, and kPeerLost and kTimeout, because the ranks can no longer
  /// communicate. Returns false if there is a failure.
  bool Run(const std::string& what, const std::function<void()>& body);
  /// Keeps `complaint`, unless a failure is pending.
  void Fail(Complaint complaint);
  bool failed() const { return complaint_.has_value(); }
  void RequestStop() { stop_ = true; }

  /// Returns true if any rank has requested to stop. If any rank has failed, throws AgreedError on
  /// all ranks. The text names the ranks, unless all ranks have the same text: "rank 2: loss is
  /// nan". Collective.
  bool Settle();
  /// Whether the last Settle has found a notice on any rank.
  bool preempted() const { return preempted_; }

 private:
  [[noreturn]] void ThrowTogether();

  Communicator& world_;
  std::optional<Complaint> complaint_;
  const PreemptionNotice* notice_ = nullptr;
  bool stop_ = false, preempted_ = false;
};

/// Returns the complaint of the lowest rank that has one, with the names of the ranks that share
/// it. `of_ranks` has one entry per rank. At least one entry has a text.
///   {"", "x", "x"}  ->  "ranks 1 and 2: x"
Complaint CombineComplaints(const std::vector<Complaint>& of_ranks);

/// The readiness of a rank for training.
struct Verdict {
  int exit_code = kSuccess;
  std::string problem = {};  ///< one line, if exit_code is not kSuccess
  /// The settings that must be equal on all ranks, one "name=value" per line.
  std::string settings = {};
};

/// Combines the verdicts of all ranks: all ranks continue, or all ranks exit with the same code and
/// line. The line names the ranks with the problem, unless all ranks have it.
///   ranks 0 and 1: ready; rank 2: 66, "x: missing"  ->  66, "rank 2 (host b): x: missing"
/// `host_of_rank` has the host's name of each rank.
Verdict Combine(const std::vector<Verdict>& of_ranks, const std::vector<std::string>& host_of_rank);

/// Combines the verdicts of all ranks. Collective.
Verdict AgreeOn(const Verdict& mine, Context& job);

/// The FNV-1a digest of `bytes` bytes, 64 bits. `start` is an earlier digest to continue.
constexpr uint64_t kEmptyDigest = 0xcbf29ce484222325;
uint64_t Digest(const void* data, size_t bytes, uint64_t start = kEmptyDigest);

/// The digest of all values, in order. Equal values give equal digests.
uint64_t DigestOf(const std::vector<Parameter>& parameters);

/// Formats a digest as 16 hexadecimal digits.
std::string ToHex(uint64_t digest);

/// Throws Error kMismatch, with the names of the ranks, if the digests differ. Collective.
void CheckEqualOnAllRanks(uint64_t digest, Communicator& world);

/// The error text of CheckEqualOnAllRanks for the digests of all ranks. Empty if they are equal.
///   {1, 1, 2}  ->  "... rank 0 has 0000000000000001, rank 2 has 0000000000000002"
std::string DifferenceBetween(const std::vector<uint64_t>& digests);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_AGREEMENT_H_
