#ifndef DTRUN_MODELS_TRAIN_AGREEMENT_H_
#define DTRUN_MODELS_TRAIN_AGREEMENT_H_

#include <dtrun/communicator.h>
#include <dtrun/context.h>
#include <dtrun/error.h>
#include <dtrun/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::models {

/// What a trainer's exit code says: the numbers that dtrun documents, some of them sysexits.h's.
enum ExitCode : int {
  kSuccess = 0,
  kUsage = 2,
  kDiverged = 65,  ///< the loss is not a number
  kDataUnusable = 66,
  kInternal = 70,
  kResultNotWritten = 73,
  kRanksDisagree = 76,  ///< or one of them is lost or stalled
};

/// For an error that the runtime reports.
inline int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return kUsage;
    case ErrorCode::kMismatch:
    case ErrorCode::kPeerLost:
    case ErrorCode::kTimeout: return kRanksDisagree;
    case ErrorCode::kUnavailable:
    case ErrorCode::kSystem: return kInternal;
  }
  return kInternal;
}

/// An error that every rank throws with the same text: nobody waits for anybody, the job can still
/// end with Shutdown(), and one rank is to say it.
class AgreedError : public Error {
 public:
  AgreedError(ErrorCode code, int exit_code, const std::string& message)
      : Error(code, message), exit_code_(exit_code) {}
  /// What a trainer should end with: see ExitCode.
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

/// Whether a rank is ready to train.
struct Verdict {
  int exit_code = kSuccess;
  std::string problem = {};  ///< one line, when the code is not kSuccess
  /// What has to be equal on all ranks, "name=value" per line: options, the data's extent.
  std::string settings = {};
};

/// What the ranks, each of which has one verdict, do together: go on, or leave with one code and
/// one line. Which ranks have the problem is said unless all have it.
///   ranks 0 and 1: ready; rank 2: 66, "x: missing"  ->  66, "rank 2 (host b): x: missing"
/// `host_of_rank` has the names of the ranks' hosts.
Verdict Combine(const std::vector<Verdict>& of_ranks, const std::vector<std::string>& host_of_rank);

/// Collective: every rank brings its own verdict and leaves with the combined one.
Verdict AgreeOn(const Verdict& mine, Context& job);

/// 64 bits of `bytes` (FNV-1a). `start` is an earlier digest to go on from.
constexpr uint64_t kEmptyDigest = 0xcbf29ce484222325;
uint64_t Digest(const void* data, size_t bytes, uint64_t start = kEmptyDigest);

/// Of all values, in order: equal digests, equal bits.
uint64_t DigestOf(const std::vector<Parameter>& parameters);

/// 16 hexadecimal digits.
std::string ToHex(uint64_t digest);

/// Collective. Throws Error kMismatch, naming the ranks, when digests differ.
void CheckEqualOnAllRanks(uint64_t digest, Communicator& world);

/// What CheckEqualOnAllRanks says about the digests of all ranks; empty when they are equal.
///   {1, 1, 2}  ->  "... rank 0 has 0000000000000001, rank 2 has 0000000000000002"
std::string DifferenceBetween(const std::vector<uint64_t>& digests);

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_TRAIN_AGREEMENT_H_
