#include "launcher/dry_run.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using nlohmann::json;

std::string CpuText(const CpuPlan& plan) {
  const char* threads = plan.threads == 1 ? " thread" : " threads";
  return Text(CpusInWords(plan.pinned), ", ", plan.threads, threads);
}

json RankJson(const RankPlace& place) {
  json rank = {{"rank", place.rank}, {"host", place.host}, {"local_rank", place.local_rank}};
  if (!place.cpus) return rank;
  rank["threads"] = place.cpus->threads;
  rank["cpus"] = place.cpus->pinned.empty() ? json("all") : json(CpuList(place.cpus->pinned));
  return rank;
}

}  // namespace

std::vector<RankPlace> PlacesOf(
    const MpirunCall& call, Bind bind, const std::string& own_name, const std::vector<Cpu>& cpus,
    std::optional<double> quota) {
  std::vector<RankPlace> places;
  int rank = 0;
  for (const base::HostSlots& host : call.placement) {
    const bool is_here = IsThisMachine(host.name, own_name);
    for (int slot = 0; slot < host.slots; ++slot) {
      std::optional<CpuPlan> plan;
      if (is_here) plan = BindCpus(cpus, quota, bind, slot, host.slots);
      places.push_back({rank++, slot, host.name, plan});
    }
  }
  return places;
}

std::string PlanText(const MpirunCall& call, const std::vector<RankPlace>& places) {
  std::string text = ShellLine(StartArgv(call)) + "\n";
  for (const RankPlace& place : places)
    text += Text(
        "rank ", place.rank, " -> ", place.host,
        place.cpus ? ": " + CpuText(*place.cpus) : std::string(), '\n');
  return text;
}

std::string PlanJson(const MpirunCall& call, const std::vector<RankPlace>& places) {
  json ranks = json::array();
  for (const RankPlace& place : places) ranks.push_back(RankJson(place));
  const json plan = {{"command", StartArgv(call)}, {"variables", call.exported}, {"ranks", ranks}};
  return plan.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace dtrun::launcher
