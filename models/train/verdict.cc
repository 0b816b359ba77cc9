#include "models/train/verdict.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <sstream>

#include "models/message_text.h"

namespace dtrun::models {
namespace {

// "rank 2 (host b)"; "ranks 0, 2 and 3"
std::string NamesOf(const std::vector<size_t>& ranks, const std::vector<std::string>& hosts) {
  if (ranks.size() == 1) return Text("rank ", ranks[0], " (host ", hosts[ranks[0]], ")");
  std::string names = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    names += Text(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return names;
}

Verdict CombineProblems(
    const std::vector<Verdict>& of_ranks, const Verdict& first,
    const std::vector<std::string>& hosts) {
  std::vector<size_t> alike;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Verdict& v = of_ranks[rank];
    if (v.exit_code == first.exit_code && v.problem == first.problem) alike.push_back(rank);
  }
  if (alike.size() == of_ranks.size()) return {first.exit_code, first.problem, ""};
  return {first.exit_code, Text(NamesOf(alike, hosts), ": ", first.problem), ""};
}

std::string FirstDifference(
    const std::string& ours, const std::string& theirs, const std::string& name) {
  std::istringstream a(ours), b(theirs);
  std::string line_a, line_b;
  while (std::getline(a, line_a) && std::getline(b, line_b)) {
    if (line_a != line_b) return Text("rank 0 has ", line_a, ", ", name, " has ", line_b);
  }
  return Text("rank 0 has other settings than ", name);
}

Verdict CheckSettings(const std::vector<Verdict>& of_ranks, const std::vector<std::string>& hosts) {
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const std::string &ours = of_ranks[0].settings, &theirs = of_ranks[rank].settings;
    if (ours == theirs) continue;
    return {
        kRanksDisagree,
        Text(
            "the ranks were started differently: ",
            FirstDifference(ours, theirs, NamesOf({rank}, hosts))),
        ""};
  }
  return {};
}

// Code, problem and settings with their lengths in front.
std::string Pack(const Verdict& v) {
  return Text(v.exit_code, " ", v.problem.size(), " ", v.problem, v.settings);
}

Verdict UnpackVerdict(const std::string& bytes) {
  std::istringstream stream(bytes);
  Verdict v;
  size_t length = 0;
  stream >> v.exit_code >> length;
  const size_t begin = static_cast<size_t>(stream.tellg()) + 1;
  v.problem = bytes.substr(begin, length);
  v.settings = bytes.substr(begin + length);
  return v;
}

}  // namespace

Verdict Combine(
    const std::vector<Verdict>& of_ranks, const std::vector<std::string>& host_of_rank) {
  const auto first = std::find_if(
      of_ranks.begin(), of_ranks.end(), [](const Verdict& v) { return v.exit_code != kSuccess; });
  if (first != of_ranks.end()) return CombineProblems(of_ranks, *first, host_of_rank);
  return CheckSettings(of_ranks, host_of_rank);
}

Verdict AgreeOn(const Verdict& mine, Context& job) {
  std::vector<Verdict> of_ranks;
  for (const std::string& bytes : AllGatherBytes(job.world(), Pack(mine)))
    of_ranks.push_back(UnpackVerdict(bytes));
  std::vector<std::string> host_of_rank;
  for (const Host& host : job.hosts())
    host_of_rank.insert(host_of_rank.end(), size_t(host.slots), host.name);
  return Combine(of_ranks, host_of_rank);
}

}  // namespace dtrun::models
