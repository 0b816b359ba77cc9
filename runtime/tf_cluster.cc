#include "runtime/tf_cluster.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;
using nlohmann::json;

[[noreturn]] void Refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "environment variable TF_CONFIG: " + what);
}

std::string Excerpt(const std::string& text) {
  constexpr size_t kMost = 60;
  return "'" + text.substr(0, kMost) + (text.size() > kMost ? "...'" : "'");
}

std::string Dump(const json& value) {
  return Excerpt(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

void AddTasks(const json& cluster, const std::string& job, TfCluster& read) {
  const auto tasks = cluster.find(job);
  if (tasks == cluster.end()) return;
  if (!tasks->is_array()) Refuse(Text("cluster.", job, " is no list of \"host:port\""));
  for (const json& task : *tasks) {
    if (!task.is_string() || HostOfAddress(task.get<std::string>()).empty())
      Refuse(Text("cluster.", job, " holds ", Dump(task), ", expected \"host:port\""));
    read.addresses.push_back(task);
  }
}

int ReadIndex(const json& task, const std::string& type, size_t tasks) {
  const auto index = task.find("index");
  // Some write the number as text.
  const auto number = index == task.end()          ? std::nullopt
                      : index->is_string()         ? base::ParseInteger(index->get<std::string>())
                      : index->is_number_integer() ? std::optional(index->get<int64_t>())
                                                   : std::nullopt;
  if (!number || *number < 0 || *number >= static_cast<int64_t>(tasks))
    Refuse(Text(
        "task.index is ", index == task.end() ? "missing" : Dump(*index), "; cluster.", type,
        " has ", tasks, " tasks"));
  return static_cast<int>(*number);
}

}  // namespace

std::string HostOfAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) return "";
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return host;
}

TfCluster ReadTfCluster(const std::string& text) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) Refuse(Text("found ", Excerpt(text), ", expected a JSON object"));
  const auto cluster = config.find("cluster");
  if (cluster == config.end()) return {};
  if (!cluster->is_object()) Refuse("cluster is no object of lists of \"host:port\"");
  if (cluster->contains("ps"))
    Refuse("the cluster has parameter servers (ps), which dtrun does not");
  const auto task = config.find("task");
  const bool has_task = task != config.end() && task->is_object();
  const std::string type =
      has_task && task->contains("type") && task->at("type").is_string() ? task->at("type") : "";
  TfCluster read;
  for (const char* job : {"chief", "master", "worker"}) {
    const size_t before = read.addresses.size();
    AddTasks(*cluster, job, read);
    if (type == job)
      read.rank = static_cast<int>(before) + ReadIndex(*task, type, read.addresses.size() - before);
  }
  if (has_task && read.rank < 0 && read.addresses.size() > 1)
    Refuse(Text("task.type is ", Excerpt(type), "; expected chief, master or worker"));
  return read;
}

}  // namespace dtrun::runtime
