#include "launcher/job_networks.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/launch_error.h"
#include "launcher/network_survey.h"
#include "launcher/rank_environment.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr const char* kParameters[] = {
    "btl_tcp_if_include", "btl_tcp_if_exclude", "oob_tcp_if_include", "oob_tcp_if_exclude"};

// "btl_tcp_if_exclude = lo" in one of Open MPI's own files.
bool FileSets(const std::string& file, const std::string& parameter) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line.compare(begin, parameter.size(), parameter) != 0)
      continue;
    const size_t next = line.find_first_not_of(" \t", begin + parameter.size());
    if (next != std::string::npos && line[next] == '=') return true;
  }
  return false;
}

// Open MPI refuses to be told both what to use and what to leave out, wherever it is told so.
std::optional<std::string> WhatUserSets(const Plan& plan) {
  const std::string home = base::ProcessEnv("HOME").value_or("");
  for (const std::string parameter : kParameters) {
    const auto& words = plan.call.mpi_args;
    if (std::find(words.begin(), words.end(), parameter) != words.end() ||
        Has(plan.environment, "OMPI_MCA_" + parameter) ||
        FileSets(home + "/.openmpi/mca-params.conf", parameter) ||
        FileSets("/etc/openmpi/openmpi-mca-params.conf", parameter))
      return parameter;
  }
  return std::nullopt;
}

std::vector<std::string> Apply(NetworkChoice choice, Plan& plan) {
  const bool wanted = !plan.wanted_networks.empty();
  const auto parameter = WhatUserSets(plan);
  if (wanted && parameter && parameter->ends_with("_exclude"))
    throw UsageError(Text("--network-interfaces does not go with ", *parameter, " of your own"));
  if (!wanted && parameter) return {Text("Open MPI uses the networks that ", *parameter, " says")};
  plan.call.reach.networks = choice.include;
  plan.call.reach.networks_left_out = choice.exclude;
  return choice.reasons;
}

}  // namespace

std::vector<std::string> SettleNetworks(const std::vector<HostNetworks>& hosts, Plan& plan) {
  if (plan.call.only_this_machine) return {};
  const std::vector<std::string>& wanted = plan.wanted_networks;
  const NetworkChoice choice =
      wanted.empty() ? ChooseNetworks(hosts) : UseNetworks(hosts, wanted, OwnInterfaces());
  const std::string& first = choice.addresses.front();
  std::vector<std::string> reasons = Apply(choice, plan);
  if (plan.chooses_master_address && !first.empty()) {
    Set(plan.environment, kMasterAddress, first);
    reasons.push_back(Text(kMasterAddress, " is ", first, ", of ", hosts.front().host));
  }
  return reasons;
}

std::vector<std::string> GuessNetworks(Plan& plan) {
  if (plan.call.only_this_machine) return {};
  std::vector<std::string> names, lines;
  for (const base::HostSlots& host : plan.call.placement) names.push_back(host.name);
  if (plan.wanted_networks.empty()) {
    const std::vector<std::string> reasons =
        Apply(ChooseNetworks(SurveyFromHere(names, OnThisMachine(plan.call.placement))), plan);
    lines = {reasons.front()};
    if (reasons.size() > 1) lines.push_back(reasons.back());
  } else {
    Apply({.include = WantedNetworks(plan.wanted_networks, OwnInterfaces())}, plan);
  }
  lines.push_back("a job asks each host for its networks before it starts mpirun");
  return lines;
}

void CheckWantedNetworks(const Plan& plan) {
  if (!plan.call.only_this_machine || plan.wanted_networks.empty()) return;
  const std::vector<Interface> here = OwnInterfaces();
  CheckNames({{"this host", here, {}}}, plan.wanted_networks, here);
}

}  // namespace dtrun::launcher
