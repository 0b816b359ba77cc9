#include "runtime/job/job_epoch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "runtime/job/join_plan.h"

namespace dtrun::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a join may fail for other reasons after a loss.
constexpr seconds kUntilAllKnow{30};
constexpr milliseconds kBetweenJoins{100};
constexpr milliseconds kBetweenLooks{100};

}  // namespace

std::unique_ptr<JobEpoch> JobEpoch::Of(const std::optional<base::LaunchEnv>& launch) {
  if (!launch || launch->epoch_file.empty()) return nullptr;
  return std::unique_ptr<JobEpoch>(new JobEpoch(base::EpochFile::Open(launch->epoch_file)));
}

JobEpoch::~JobEpoch() {
  stop_ = true;
  file_->Wake();
  if (thread_.joinable()) thread_.join();
}

std::optional<Error> JobEpoch::WhyOver() const {
  const uint32_t now = file_->epoch();
  if (now == number_) return std::nullopt;
  const base::EpochCause why = file_->WhyEpoch(now);
  return Error(ErrorCode::kPeerLost, why.text, why.lost);
}

base::GetEnv JobEpoch::Environment(const base::GetEnv& get) const {
  std::map<std::string, std::string> replaced;
  for (const std::string& line : base::Split(file_->VariablesOf(number_), '\n'))
    if (const size_t at = line.find('='); at != std::string::npos)
      replaced[line.substr(0, at)] = line.substr(at + 1);
  return [get, replaced](const std::string& name) {
    const auto found = replaced.find(name);
    return found == replaced.end() ? get(name) : std::optional(found->second);
  };
}

bool JobEpoch::AwaitEnd(milliseconds longest) const { return file_->AwaitAfter(number_, longest); }

void JobEpoch::Watch(ops::Engine& engine) {
  thread_ = std::thread([this, &engine] {
    while (!stop_ && !file_->AwaitAfter(number_, kBetweenLooks, &stop_)) continue;
    if (const std::optional<Error> why = WhyOver()) engine.LosePeers(*why);
  });
}

milliseconds PatienceAfter(ErrorCode code) {
  switch (code) {
    case ErrorCode::kPeerLost: return seconds(60);
    case ErrorCode::kSystem:
    case ErrorCode::kTimeout:
    case ErrorCode::kUnavailable: return milliseconds(500);
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kDuplicateName:
    case ErrorCode::kDuplicateSet:
    case ErrorCode::kNotInSet:
    case ErrorCode::kMismatch: break;
  }
  return milliseconds(0);
}

// The hosts hear of an epoch at slightly different times. Until all know it, a rank may find
// another rank in the epoch before.
void JoinSomeEpoch(const base::GetEnv& get, const std::function<void()>& join) {
  Clock::time_point fails_until = Clock::time_point::max();
  for (;;) {
    const auto epoch = JobEpoch::Of(WantsToBeAlone(get) ? std::nullopt : LaunchOf(get));
    if (epoch == nullptr) return join();
    try {
      return join();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) throw;
      if (epoch->AwaitEnd(std::max(PatienceAfter(error.code()), kBetweenJoins))) {
        fails_until = Clock::time_point::max();
        continue;
      }
      fails_until = std::min(fails_until, Clock::now() + kUntilAllKnow);
      const bool is_late = Clock::now() > fails_until;
      if (epoch->number() == 0 || error.code() == ErrorCode::kPeerLost || is_late) throw;
    }
  }
}

}  // namespace dtrun::runtime
