// FailureLines writes the report for people, and ReportJson the report for programs. HintsOf adds
// causes that the facts about the culprit's end prove.

#include "launcher/report/failure_report.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/text.h"
#include "launcher/report/flight_report.h"
#include "launcher/report/progress_report.h"

namespace dtrun::launcher {
namespace {

using base::FlightRecord;
using base::JsonText;
using base::Text;
using nlohmann::json;
using Lines = std::vector<std::string>;

// The report shows at most this many lags, because more would hide the cause.
constexpr size_t kMostLags = 3;

enum class Zone { kLocal, kUtc };

std::string Moment(std::chrono::system_clock::time_point time, const char* format, Zone zone) {
  const time_t seconds = std::chrono::system_clock::to_time_t(time);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  tm parts = {};
  zone == Zone::kLocal ? localtime_r(&seconds, &parts) : gmtime_r(&seconds, &parts);
  char text[64];
  const size_t length = strftime(text, sizeof text, format, &parts);
  std::snprintf(text + length, sizeof text - length, ".%03d", static_cast<int>(ms.count() % 1000));
  return text;
}

// "2026-11-21T10:04:04.123Z"; null: the time is not known.
json Iso(const JobStory& story, int64_t ns) {
  if (ns == 0) return nullptr;
  return Moment(TimeOf(story, ns), "%Y-%m-%dT%H:%M:%S", Zone::kUtc) + "Z";
}

double SecondsCutToMilliseconds(int64_t ns) { return static_cast<double>(ns / 1'000'000) / 1000; }

std::string SecondsInWords(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", SecondsCutToMilliseconds(ns));
  return text;
}

size_t HostIndex(const JobStory& story, int rank) {
  return static_cast<size_t>(base::HostOfRank(story.hosts, rank));
}

int LocalRank(const JobStory& story, int rank) {
  int local = rank;
  for (size_t host = 0; host < HostIndex(story, rank); ++host) local -= story.hosts[host].slots;
  return local;
}

// ---- For people ---------------------------------------------------------------------------------

std::vector<int> RanksOf(const JobStory& story, RankRole role) {
  std::vector<int> ranks;
  for (int rank = 0; rank < base::RankCount(story.hosts); ++rank)
    if (RoleOf(story, rank) == role) ranks.push_back(rank);
  return ranks;
}

std::string CulpritLine(const JobStory& story, const ExitRecord& culprit) {
  Lines parts;
  const bool waited_for = !RanksOf(story, RankRole::kGaveUp).empty();
  if (culprit.pid > 0) parts.push_back(Text("pid ", culprit.pid));
  parts.push_back(Text("local rank ", LocalRank(story, culprit.rank)));
  // If other ranks gave up waiting for the culprit, it ended only with the job.
  if (culprit.time_ns > 0 && !waited_for) {
    parts.push_back("at " + Moment(TimeOf(story, culprit.time_ns), "%H:%M:%S", Zone::kLocal));
    parts.push_back(SecondsInWords(culprit.time_ns - story.started_ns) + " after the start");
  }
  const std::string whose = waited_for ? Text("rank ", culprit.rank, ": ") : "";
  return Text("  ", whose, base::Join(parts, ", "));
}

void AddOthers(const JobStory& story, Lines& lines) {
  if (const auto victims = RanksOf(story, RankRole::kVictim); !victims.empty())
    lines.push_back(Text(
        "  ", base::RankRanges(victims), victims.size() == 1 ? " was" : " were",
        " ended because of it"));
  if (const auto gave_up = RanksOf(story, RankRole::kGaveUp); !gave_up.empty())
    lines.push_back(Text("  ", base::RankRanges(gave_up), " gave up waiting for it"));
  if (const auto failed = RanksOf(story, RankRole::kFailed); !failed.empty())
    lines.push_back(Text("  ", base::RankRanges(failed), " failed after it"));
  if (const auto lost = RanksOf(story, RankRole::kLost); !lost.empty())
    lines.push_back(
        Text("  ", base::RankRanges(lost), lost.size() == 1 ? " was" : " were", " lost before it"));
}

// The lags, then the activity of the ranks that no lag names.
void AddFlights(const JobStory& story, Lines& lines) {
  std::vector<FlightRecord> unnamed = story.flights;
  const std::vector<FlightLag> lags = FindLags(story.flights);
  const auto name = [&](int rank) {
    std::erase_if(unnamed, [&](const FlightRecord& record) { return record.rank == rank; });
  };
  for (size_t i = 0; i < std::min(lags.size(), kMostLags); ++i) {
    lines.push_back(LagText(lags[i]));
    for (const int rank : lags[i].waiting) name(rank);
    for (const LaggingRank& rank : lags[i].lagging) name(rank.rank);
  }
  if (const std::string summary = FlightSummary(unnamed); !summary.empty())
    lines.push_back(summary);
}

// ---- For programs -------------------------------------------------------------------------------

void AddEnd(const ExitRecord* record, json& object) {
  object["exit_code"] = nullptr;
  object["signal"] = nullptr;
  object["signal_name"] = nullptr;
  if (record == nullptr) return;
  if (record->end == RankEnd::kExited) object["exit_code"] = record->value;
  if (record->end != RankEnd::kSignaled) return;
  object["signal"] = record->value;
  object["signal_name"] = SignalName(record->value);
}

json PlaceOf(const JobStory& story, int rank, const ExitRecord* record) {
  json object = {
      {"rank", rank},
      {"host", story.hosts[HostIndex(story, rank)].name},
      {"local_rank", LocalRank(story, rank)},
      {"pid", record != nullptr && record->pid > 0 ? json(record->pid) : json()}};
  AddEnd(record, object);
  return object;
}

json LinesOf(const std::string& text) {
  json lines = json::array();
  if (text.empty()) return lines;
  for (const std::string& line : base::Split(text, '\n')) lines.push_back(line);
  return lines;
}

json CulpritOf(const JobStory& story) {
  const ExitRecord* record = RecordOf(story, story.verdict.culprit);
  if (record == nullptr) return nullptr;
  json culprit = PlaceOf(story, record->rank, record);
  culprit["time"] = Iso(story, record->time_ns);
  culprit["last_lines"] = LinesOf(story.last_lines);
  const std::string activity = ActivityOf(story, record->rank);
  culprit["activity"] = activity.empty() ? json() : json(activity);
  return culprit;
}

json StepsOf(const JobStory& story, int rank) {
  for (const base::FlightProgress& progress : story.progress)
    if (progress.rank == rank) return StepJson(progress);
  return nullptr;
}

Lines Hints(const JobStory& story) {
  const ExitRecord* culprit = RecordOf(story, story.verdict.culprit);
  if (culprit == nullptr) return {};
  Lines hints = HintsOf(*culprit, story.last_lines);
  if (culprit->rank < story.servers)
    hints.push_back(Text(
        "rank ", culprit->rank,
        " held variables (--ps), which are lost; start the job again (a job that saves checkpoints "
        "continues from the newest)"));
  return hints;
}

}  // namespace

Lines FailureLines(const JobStory& story, bool show_last_lines) {
  Lines lines;
  if (story.verdict.message.empty()) return lines;
  const ExitRecord* culprit = RecordOf(story, story.verdict.culprit);
  if (culprit != nullptr && show_last_lines && !story.last_lines.empty()) {
    lines.push_back(Text("rank ", culprit->rank, " wrote last to stderr:"));
    for (const std::string& line : base::Split(story.last_lines, '\n'))
      lines.push_back("  " + line);
  }
  lines.push_back(story.verdict.message);
  if (culprit != nullptr) {
    lines.push_back(CulpritLine(story, *culprit));
    AddOthers(story, lines);
  }
  AddFlights(story, lines);
  for (const std::string& hint : Hints(story)) lines.push_back("hint: " + hint);
  return lines;
}

namespace {

// `recovery_s` is null if the job ended before all ranks worked together again.
json JsonOf(const JobStory& story, const Loss& loss) {
  return {
      {"reason", loss.why},
      {"ranks", loss.ranks},
      {"left", loss.left},
      {"joined", loss.joined},
      {"at", Iso(story, loss.lost_ns)},
      {"recovery_s", loss.recovered_ns > 0
                         ? json(SecondsCutToMilliseconds(loss.recovered_ns - loss.lost_ns))
                         : json()},
      {"steps_lost", loss.steps_lost >= 0 ? json(loss.steps_lost) : json()}};
}

}  // namespace

std::string LossLine(const JobStory& story, int64_t now_ns) {
  if (story.losses.empty()) return "";
  const JobMetrics job = JobMetricsOf(story.losses, 0, now_ns);
  const auto times = [](int64_t count) { return count == 1 ? "once" : Text(count, " times"); };
  std::vector<std::string> changes;
  if (job.losses > 0) changes.push_back("lost ranks " + times(job.losses));
  if (job.gains > 0) changes.push_back("gained ranks " + times(job.gains));
  const int64_t all_ns = std::max<int64_t>(now_ns - story.started_ns, 1);
  char numbers[64];
  std::snprintf(
      numbers, sizeof numbers, "%.1f %% of its %.1f s",
      100.0 * (1 - static_cast<double>(job.recovery_ns) / static_cast<double>(all_ns)),
      static_cast<double>(all_ns) / 1e9);
  return Text("the job ", base::Join(changes, " and "), "; all ranks worked in ", numbers);
}

std::string ReportJson(const JobStory& story) {
  json hosts = json::array(), ranks = json::array(), behind = json::array();
  for (const base::HostSlots& host : story.hosts)
    hosts.push_back({{"name", host.name}, {"slots", host.slots}});
  for (int rank = 0; rank < base::RankCount(story.hosts); ++rank) {
    const ExitRecord* record = RecordOf(story, rank);
    json object = PlaceOf(story, rank, record);
    object["started"] = record != nullptr ? Iso(story, record->start_ns) : json();
    object["ended"] = record != nullptr ? Iso(story, record->time_ns) : json();
    object["role"] = NameOf(RoleOf(story, rank));
    object["steps"] = StepsOf(story, rank);
    ranks.push_back(std::move(object));
  }
  for (const FlightLag& lag : FindLags(story.flights)) behind.push_back(JsonOf(lag));
  json losses = json::array();
  for (const Loss& loss : story.losses) losses.push_back(JsonOf(story, loss));
  const json report = {
      {"exit_code", story.verdict.exit_code},
      {"whose", story.verdict.of_rank ? "rank" : "dtrun"},
      {"reason", story.verdict.message},
      {"command", story.command},
      {"np", base::RankCount(story.hosts)},
      {"hosts", std::move(hosts)},
      {"started", Iso(story, story.started_ns)},
      {"seconds", SecondsCutToMilliseconds(story.ended_ns - story.started_ns)},
      {"culprit", CulpritOf(story)},
      {"ranks", std::move(ranks)},
      {"hints", Hints(story)},
      {"behind", std::move(behind)},
      {"losses", std::move(losses)},
      {"injected", story.injected},
  };
  // Messages of programs and of the system may hold any bytes; JSON may not.
  return JsonText(report, 1) + "\n";
}

// OomKill, AddressLimit and FullDisk need two proofs that agree: the end or the last lines of the
// program, and a fact about its host. BusError needs only the signal, and Stopped only the state
// that the agent saw.

namespace {

using base::Text;

bool Says(const std::string& lines, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (lines.find(word) != std::string::npos) return true;
  return false;
}

bool KilledBy(const ExitRecord& record, int signal) {
  return record.end == RankEnd::kSignaled && record.value == signal;
}

std::string OomKill(const ExitRecord& record) {
  const EndFacts& facts = record.facts;
  if (!KilledBy(record, SIGKILL) || facts.oom_kills <= 0) return "";
  return Text(
      "the kernel killed the rank for lack of memory: memory cgroup ", facts.memory_cgroup,
      facts.memory_limit > 0 ? Text(", limited to ", BytesInWords(facts.memory_limit), ",") : "",
      " counts ", facts.oom_kills, facts.oom_kills == 1 ? " such kill" : " such kills",
      " since the rank started");
}

std::string AddressLimit(const ExitRecord& record, const std::string& lines) {
  if (record.facts.address_limit <= 0) return "";
  if (!Says(lines, {"bad_alloc", "Cannot allocate memory", "MemoryError", "out of memory"}))
    return "";
  return Text(
      "the rank ran out of memory: its address space was limited to ",
      BytesInWords(record.facts.address_limit), " (RLIMIT_AS: ulimit -v or prlimit --as)");
}

std::string FullDisk(const ExitRecord& record, const std::string& lines) {
  if (!Says(lines, {"No space left on device"})) return "";
  std::vector<std::string> full;
  for (const FreeSpace& space : record.facts.space)
    if (space.free_bytes == 0) full.push_back(space.folder);
  if (full.empty()) return "";
  return Text(
      full.size() == 1 ? "the file system of " : "the file systems of ", base::Join(full, " and "),
      full.size() == 1 ? " is full" : " are full");
}

std::string Stopped(const ExitRecord& record) {
  if (!WasStopped(record)) return "";
  return Text(
      "the rank's program was stopped by a signal (SIGSTOP, SIGTSTP) or a debugger",
      record.time_ns > record.state.stopped_ns
          ? Text(
                ", ", (record.time_ns - record.state.stopped_ns) / 1'000'000'000,
                " s before the rank ended")
          : "");
}

std::string BusError(const ExitRecord& record) {
  if (!KilledBy(record, SIGBUS)) return "";
  std::vector<std::string> free;
  for (const FreeSpace& space : record.facts.space)
    free.push_back(Text(BytesInWords(space.free_bytes), " in ", space.folder));
  return Text(
      "SIGBUS: the rank used mapped memory without a page: a mapped file was cut short, or the "
      "file system of the mapped file is full",
      free.empty() ? "" : Text("; free: ", base::Join(free, ", ")));
}

}  // namespace

std::vector<std::string> HintsOf(const ExitRecord& record, const std::string& last_lines) {
  std::vector<std::string> hints;
  for (std::string hint :
       {OomKill(record), AddressLimit(record, last_lines), FullDisk(record, last_lines),
        BusError(record), Stopped(record)})
    if (!hint.empty()) hints.push_back(std::move(hint));
  return hints;
}

std::string BytesInWords(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return Text(bytes, bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(
      text, sizeof text, value < 10 && value != static_cast<int>(value) ? "%.1f" : "%.0f", value);
  return Text(text, ' ', kUnits[unit]);
}

}  // namespace dtrun::launcher
