#include "launcher/job/rank_reports.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "launcher/support/json_number.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::ParseJson;
using base::Text;
using nlohmann::json;

// Exit codes, signal numbers and errno values of exec are all smaller.
constexpr int64_t kMostValue = 4095;

[[noreturn]] void Refuse(const std::string& why) {
  throw LaunchError(ExitCode::kInternal, "invalid message from an agent: " + why);
}

base::StepTotals StepsOf(const json& told) {
  const auto number = [&](const char* key) { return WholeNumber(told, key, 0, INT64_MAX); };
  const base::StepTotals totals = {
      .steps = static_cast<uint64_t>(number("steps")),
      .total_ns = number("total_ns"),
      .exposed_ns = number("exposed_ns"),
      .late_ns = number("late_ns"),
      .bytes = static_cast<uint64_t>(number("bytes")),
      .buckets = static_cast<uint64_t>(number("buckets"))};
  if (totals.late_ns > totals.exposed_ns || totals.exposed_ns > totals.total_ns)
    Refuse(Text(
        "found steps of ", totals.total_ns, " ns with ", totals.exposed_ns, " ns exposed and ",
        totals.late_ns, " ns late; expected late <= exposed <= total"));
  return totals;
}

}  // namespace

void CheckRank(const Frame& frame, const HostRanks& ranks) {
  if (!ranks.contains(frame.rank))
    Refuse(Text(
        "found rank ", frame.rank,
        "; expected one of the host's ranks: ", base::RankRanges({ranks.begin(), ranks.end()})));
}

void RankReports::Hear(
    const Frame& frame, const HostRanks& ranks, int64_t now_ns, std::optional<int64_t> clock_ns) {
  try {
    switch (frame.type) {
      case FrameType::kStarted: {
        CheckRank(frame, ranks);
        const json body = ParseJson(frame.body);
        ExitRecord& record = RecordOf(frame.rank);
        if (record.time_ns > 0) record = {.rank = frame.rank};  // the rank was started again
        record.pid = static_cast<pid_t>(WholeNumber(body, "pid", 1, INT32_MAX));
        record.start_ns = now_ns;
        break;
      }
      case FrameType::kEnded:
        CheckRank(frame, ranks);
        HearEnd(frame, now_ns, clock_ns);
        break;
      case FrameType::kState:
        CheckRank(frame, ranks);
        HearState(frame, now_ns);
        break;
      case FrameType::kNoticed: {
        CheckRank(frame, ranks);
        const bool takes = ParseJson(frame.body).at("takes");
        takes_notices_[frame.rank] = takes_notices_[frame.rank] || takes;
        break;
      }
      // The folder of flight records may hold other files, so a wrong rank is not the agent's
      // error.
      case FrameType::kFlight:
        if (ranks.contains(frame.rank)) HearFlight(frame);
        break;
      case FrameType::kProgress: HearProgress(frame, ranks); break;
      default: break;
    }
  } catch (const json::exception& error) {
    throw LaunchError(ExitCode::kInternal, error.what());
  }
}

void RankReports::HearState(const Frame& frame, int64_t now_ns) {
  const json body = ParseJson(frame.body);
  const bool in_init = body.at("init"), stopped = body.at("stopped"), joined = body.at("joined");
  RankState& state = RecordOf(frame.rank).state;
  state.timeout_s = static_cast<int>(WholeNumber(body, "timeout_s", 0, INT32_MAX));
  state.warning_s = static_cast<int>(WholeNumber(body, "warning_s", 0, INT32_MAX));
  state.joined = joined;
  state.epoch = static_cast<int>(WholeNumber(body, "epoch", 0, INT32_MAX));
  const auto since = [&](bool is_so, int64_t so_far) {
    return !is_so ? 0 : so_far > 0 ? so_far : now_ns;
  };
  state.init_ns = since(in_init, state.init_ns);
  // The end of a job continues its stopped ranks. They were stopped until then.
  const bool ending = std::any_of(records_.begin(), records_.end(), [](const ExitRecord& record) {
    return record.time_ns > 0 && HasFailed(record);
  });
  if (stopped || !ending) state.stopped_ns = since(stopped, state.stopped_ns);
}

// Orders the ends of ranks on different hosts by clock, not by the arrival of the frames.
void RankReports::HearEnd(const Frame& frame, int64_t now_ns, std::optional<int64_t> clock_ns) {
  const json body = ParseJson(frame.body);
  const auto end = WholeNumber(body, "end", 0, static_cast<int64_t>(RankEnd::kNotStarted));
  const auto value = WholeNumber(body, "value", 0, kMostValue);
  const int64_t age = body.contains("age_ns") ? WholeNumber(body, "age_ns", 0, now_ns) : 0;
  const bool in_order = body.at("in_order"), orphaned = body.at("orphaned");
  const bool alone = body.value("alone", false);
  ExitRecord& record = RecordOf(frame.rank);
  record.alone = alone;
  record.end = static_cast<RankEnd>(end);
  record.value = static_cast<int>(value);
  record.in_order = in_order;
  record.orphaned = orphaned;
  record.time_ns = now_ns - age;
  if (clock_ns && body.contains("at_ns"))
    record.time_ns =
        std::clamp(WholeNumber(body, "at_ns", 0, INT64_MAX) - *clock_ns, int64_t{1}, now_ns);
  if (body.contains("step")) record.step = WholeNumber(body, "step", 0, INT64_MAX);
  if (body.contains("kept_step")) record.kept_step = WholeNumber(body, "kept_step", 0, INT64_MAX);
  if (body.contains("facts")) record.facts = EndFactsOf(body.at("facts"));
}

void RankReports::LoseHost(const HostRanks& ranks, int64_t now_ns, bool also_ended) {
  for (const int rank : ranks) {
    ExitRecord& record = RecordOf(rank);
    const bool failed = HasFailed(record) || IsGone(record);
    if (record.time_ns > 0 && !(also_ended && failed)) continue;
    record.end = RankEnd::kHostLost;
    record.time_ns = now_ns;
  }
}

void RankReports::HearFlight(const Frame& frame) {
  // ReadFlightRecord needs aligned memory.
  std::vector<base::FlightEntry> aligned(frame.body.size() / sizeof(base::FlightEntry) + 1);
  std::memcpy(static_cast<void*>(aligned.data()), frame.body.data(), frame.body.size());
  auto flight = base::ReadFlightRecord(aligned.data(), frame.body.size());
  if (flight && flight->rank == frame.rank) flights_[frame.rank] = std::move(*flight);
}

void RankReports::HearProgress(const Frame& frame, const HostRanks& ranks) {
  for (const json& rank : ParseJson(frame.body)) {
    const base::FlightProgress progress = {
        .rank = static_cast<int>(WholeNumber(rank, "rank", INT32_MIN, INT32_MAX)),
        .step = static_cast<uint64_t>(WholeNumber(rank, "step", 0, INT64_MAX)),
        .examples = static_cast<uint64_t>(WholeNumber(rank, "examples", 0, INT64_MAX)),
        .waited_ns = WholeNumber(rank, "waited_ns", 0, INT64_MAX),
        .reduced = StepsOf(rank.at("reduced"))};
    if (!ranks.contains(progress.rank)) continue;
    new_progress_.push_back(progress);
    progress_[progress.rank] = progress;
  }
}

ExitRecord& RankReports::RecordOf(int rank) {
  for (ExitRecord& record : records_)
    if (record.rank == rank) return record;
  return records_.emplace_back(ExitRecord{.rank = rank});
}

std::vector<ExitRecord> RankReports::records() const {
  std::vector<ExitRecord> records = records_;
  for (ExitRecord& record : records) {
    const auto flight = flights_.find(record.rank);
    if (flight != flights_.end()) record.gave_up = flight->second.gave_up;
  }
  return records;
}

std::vector<base::FlightRecord> RankReports::flights() const {
  std::vector<base::FlightRecord> flights;
  for (const auto& [rank, flight] : flights_) flights.push_back(flight);
  return flights;
}

int RankReports::running() const {
  return static_cast<int>(std::count_if(
      records_.begin(), records_.end(),
      [](const ExitRecord& record) { return record.pid > 0 && record.time_ns == 0; }));
}

std::vector<base::FlightProgress> RankReports::TakeProgress() {
  return std::exchange(new_progress_, {});
}

std::vector<base::FlightProgress> RankReports::progress() const {
  std::vector<base::FlightProgress> progress;
  for (const auto& [rank, last] : progress_) progress.push_back(last);
  return progress;
}

NoticeAnswers RankReports::answers(const HostRanks& ranks, int64_t now_ns) const {
  NoticeAnswers answers;
  HostRanks unheard = ranks;
  for (const ExitRecord& record : records_) unheard.erase(record.rank);
  answers.starting = static_cast<int>(unheard.size());
  const int64_t recently = now_ns - std::chrono::nanoseconds(Interruption::kStartTime).count();
  for (const auto& [rank, takes] : takes_notices_) answers.takers += takes ? 1 : 0;
  for (const ExitRecord& record : records_)
    answers.awaited += record.time_ns == 0 && takes_notices_.count(record.rank) == 0 ? 1 : 0;
  for (const ExitRecord& record : records_) {
    const auto takes = takes_notices_.find(record.rank);
    const bool is_deaf = takes == takes_notices_.end() || !takes->second;
    answers.starting += record.time_ns == 0 && is_deaf && record.start_ns > recently ? 1 : 0;
  }
  return answers;
}

}  // namespace dtrun::launcher
