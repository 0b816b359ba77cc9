// The environment variables that tell a process how to find the other ranks of its job. The input
// has lines of NAME=VALUE.

#include <map>

#include "base/launch_env.h"
#include "base/options.h"
#include "base/text.h"
#include "runtime/job/join_plan.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

namespace {

std::map<std::string, std::string> VariablesIn(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (const std::string& line : base::Split(text, '\n')) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line.find('\0') != std::string::npos) continue;
    variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

void CheckPlan(const runtime::JoinPlan& plan) {
  if (plan.way != runtime::JoinPlan::Way::kLocal) return;
  fuzz::Expect(plan.rank >= 0 && plan.rank < plan.size && !plan.meeting.empty());
}

void CheckLaunch(const base::LaunchEnv& launch) {
  fuzz::Expect(base::RankOf(launch, launch.rank) < base::RankCount(launch.hosts));
  const base::Environment written = base::WriteLaunchEnv(launch);
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    for (const auto& [variable, value] : written)
      if (variable == name) return value;
    return std::nullopt;
  };
  fuzz::Expect(base::ReadLaunchEnv(get) == launch);
}

}  // namespace

FUZZ_TARGET(join) {
  const auto variables = VariablesIn(fuzz::TextOf(data, size));
  const base::GetEnv get = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const runtime::Machine machine = {
      "h1", [](const std::string& name) { return name != "h2"; },
      [] {
        return std::vector<std::string>{"./train", "a b"};
      }};
  // An error contains the command to type instead, with all hosts.
  const size_t longest = 2000 + 2 * size;
  fuzz::TakesOrRefuses(
      [&] {
        const auto launch = base::ReadLaunchEnv(get);
        if (launch) CheckLaunch(*launch);
        CheckPlan(runtime::PlanJoin(get, launch, machine));
      },
      longest);
  fuzz::TakesOrRefuses([&] { CheckPlan(runtime::PlanJoin(get, std::nullopt, machine)); }, longest);
  fuzz::TakesOrRefuses([&] { base::ReadOptions(get, {}); }, longest);
  return 0;
}
