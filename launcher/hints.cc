// Each hint has two proofs that have to agree: how the program ended or what it said, and what its
// host says.

#include "launcher/hints.h"

#include <signal.h>

#include <cstdio>

#include "base/text.h"

namespace dtrun::launcher {
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
      "the kernel killed it for lack of memory: memory cgroup ", facts.memory_cgroup,
      facts.memory_limit > 0 ? Text(", limited to ", BytesInWords(facts.memory_limit), ",") : "",
      " counts ", facts.oom_kills, " more such ", facts.oom_kills == 1 ? "kill" : "kills",
      " than when it started");
}

std::string AddressLimit(const ExitRecord& record, const std::string& lines) {
  if (record.facts.address_limit <= 0) return "";
  if (!Says(lines, {"bad_alloc", "Cannot allocate memory", "MemoryError", "out of memory"}))
    return "";
  return Text(
      "it ran out of memory, and its address space was limited to ",
      BytesInWords(record.facts.address_limit), " (RLIMIT_AS: ulimit -v or prlimit --as)");
}

std::string FullDisk(const ExitRecord& record, const std::string& lines) {
  if (!Says(lines, {"No space left on device"})) return "";
  std::vector<std::string> full;
  for (const FreeSpace& space : record.facts.space)
    if (space.free_bytes == 0) full.push_back(space.folder);
  if (full.empty()) return "";
  return Text("the file system of ", base::Join(full, " and that of "), " is full");
}

std::string BusError(const ExitRecord& record) {
  if (!KilledBy(record, SIGBUS)) return "";
  std::vector<std::string> free;
  for (const FreeSpace& space : record.facts.space)
    free.push_back(Text(BytesInWords(space.free_bytes), " in ", space.folder));
  return Text(
      "SIGBUS: it used mapped memory that has nothing behind it, such as that of a file that was "
      "cut "
      "short or for which its file system has no room",
      free.empty() ? "" : Text("; free: ", base::Join(free, ", ")));
}

}  // namespace

std::vector<std::string> HintsOf(const ExitRecord& record, const std::string& last_lines) {
  std::vector<std::string> hints;
  for (std::string hint :
       {OomKill(record), AddressLimit(record, last_lines), FullDisk(record, last_lines),
        BusError(record)})
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
