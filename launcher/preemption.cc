#include "launcher/preemption.h"

#include <algorithm>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {
namespace {

constexpr int kSaved = static_cast<int>(ExitCode::kPreempted);

bool EndedWith(const ExitRecord& record, int code) {
  return record.end == RankEnd::kExited && record.value == code;
}

}  // namespace

bool HaveSaved(const std::vector<ExitRecord>& records, int ranks, bool in_grace) {
  bool saved = in_grace;
  for (const ExitRecord& record : records) {
    if (!EndedWith(record, 0) && !EndedWith(record, kSaved)) return false;
    saved = saved || EndedWith(record, kSaved);
  }
  return saved && static_cast<int>(records.size()) == ranks;
}

std::optional<Verdict> JudgeLate(
    const std::vector<ExitRecord>& records, const std::vector<base::HostSlots>& hosts,
    std::chrono::seconds grace, int64_t now_ns) {
  const ExitRecord* first = nullptr;
  const ExitRecord* late = nullptr;
  for (const ExitRecord& record : records) {
    if (record.time_ns == 0 && late == nullptr) late = &record;
    if (EndedWith(record, kSaved) && (first == nullptr || record.time_ns < first->time_ns))
      first = &record;
  }
  const std::chrono::seconds patience = std::max(grace, std::chrono::seconds(1));
  if (first == nullptr || late == nullptr ||
      std::chrono::nanoseconds(now_ns - first->time_ns) < patience)
    return std::nullopt;
  return Verdict{
      static_cast<int>(ExitCode::kLeftEarly),
      base::Text(
          "rank ", late->rank, " on ",
          hosts[static_cast<size_t>(base::HostOfRank(hosts, late->rank))].name, " still ran ",
          patience.count(), " s (--grace) after rank ", first->rank,
          " had saved and ended with code ", kSaved),
      late->rank};
}

}  // namespace dtrun::launcher
