#include "launcher/tf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using nlohmann::json;

constexpr char kName[] = "TF_CONFIG";

// A list or an object is not written out: that calls itself for each level, of which there may be
// any number.
std::string InWords(const json& value) {
  return value.is_structured() ? Text("an ", value.type_name()) : Excerpt(value.dump());
}

// "h1:2222" -> "h1"
std::string HostOfTask(const json& task, const std::string& job) {
  if (!task.is_string())
    throw UsageError(
        Text(kName, ": cluster.", job, " holds ", InWords(task), ", expected \"host:port\""));
  const std::string address = task.get<std::string>();
  const std::string name = address.substr(0, address.rfind(':'));
  if (RefusalOfHost(name))
    throw UsageError(
        Text(kName, ": cluster.", job, " holds ", Excerpt(address), ", expected host:port"));
  return name;
}

void AddTasks(const json& cluster, const std::string& job, std::vector<Host>& hosts) {
  const auto tasks = cluster.find(job);
  if (tasks == cluster.end()) return;
  if (!tasks->is_array())
    throw UsageError(Text(kName, ": cluster.", job, " is no list of \"host:port\""));
  for (const json& task : *tasks) {
    const std::string name = HostOfTask(task, job);
    const auto known = std::find_if(
        hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
    if (known == hosts.end()) {
      hosts.push_back({name, 1, 0, kName});
    } else {
      ++known->slots;
    }
  }
}

}  // namespace

std::vector<Host> TfConfigHosts(const std::string& text) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    throw UsageError(Text(kName, ' ', Excerpt(text), ": expected a JSON object"));
  const auto cluster = config.find("cluster");
  if (cluster == config.end()) return {};
  if (!cluster->is_object())
    throw UsageError(Text(kName, ": cluster is no object of lists of \"host:port\""));
  if (cluster->contains("ps"))
    throw UsageError(Text(
        kName, ": the cluster has parameter servers, which dtrun does not; say the hosts with -H"));
  std::vector<Host> hosts;
  for (const char* job : {"chief", "master", "worker"}) AddTasks(*cluster, job, hosts);
  return hosts;
}

std::string WriteTfConfig(
    const std::vector<base::HostSlots>& hosts, const std::string& first_host, int rank,
    int first_port) {
  std::vector<std::string> workers;
  for (const base::HostSlots& host : hosts)
    for (int slot = 0; slot < host.slots; ++slot)
      workers.push_back(
          Text(host.name == hosts[0].name ? first_host : host.name, ':', first_port + slot));
  const json config = {
      {"cluster", {{"worker", workers}}}, {"task", {{"type", "worker"}, {"index", rank}}}};
  return config.dump();
}

}  // namespace dtrun::launcher
