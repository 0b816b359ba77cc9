#ifndef DTRUN_RUNTIME_JOB_JOB_EPOCH_H_
#define DTRUN_RUNTIME_JOB_JOB_EPOCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/elastic_files.h"
#include "base/launch_env.h"
#include "dtrun/error.h"
#include "ops/engine/progress_engine.h"

namespace dtrun::runtime {

/// The epoch of the job in which this process works, if lost ranks are started again (dtrun
/// --restarts). It ends when the launcher begins the next epoch, because ranks were lost.
class JobEpoch {
 public:
  /// The current epoch. Null if the launch does not start lost ranks again. Throws Error kSystem.
  static std::unique_ptr<JobEpoch> Of(const std::optional<base::LaunchEnv>& launch);
  ~JobEpoch();
  JobEpoch(const JobEpoch&) = delete;
  JobEpoch& operator=(const JobEpoch&) = delete;

  uint32_t number() const { return number_; }
  /// The error of operations if the epoch is over: kPeerLost, with the lost ranks.
  std::optional<Error> WhyOver() const;
  /// `get` with the variables that this epoch has replaced: hosts, and the address of the first
  /// one.
  base::GetEnv Environment(const base::GetEnv& get) const;
  /// Waits until the epoch is over. Returns false if `longest` passes first.
  bool AwaitEnd(std::chrono::milliseconds longest) const;

  /// From now on, the end of the epoch ends all operations of `engine`, which outlives this object.
  void Watch(ops::Engine& engine);

 private:
  explicit JobEpoch(std::unique_ptr<base::EpochFile> file)
      : file_(std::move(file)), number_(file_->epoch()) {}

  std::unique_ptr<base::EpochFile> file_;
  uint32_t number_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// How long a rank that got this error waits for the launcher to notice a loss.
std::chrono::milliseconds PatienceAfter(ErrorCode code);

/// Calls `join`, which joins the current epoch. If ranks are lost meanwhile, calls it again. Throws
/// the errors of `join` for which no epoch is the reason.
void JoinSomeEpoch(const base::GetEnv& get, const std::function<void()>& join);

}  // namespace dtrun::runtime

#endif  // DTRUN_RUNTIME_JOB_JOB_EPOCH_H_
