// The table of engines. Each engine is defined in its own file.

#include "launcher/engines/launch_engine.h"

#include "base/text.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {

const LaunchEngine& MpirunEngine();  // mpirun.cc
const LaunchEngine& LocalEngine();   // local_engine.cc
const LaunchEngine& SrunEngine();    // local_engine.cc
const LaunchEngine& QrshEngine();    // local_engine.cc
const LaunchEngine& SshEngine();     // local_engine.cc
const LaunchEngine& HydraEngine();   // local_engine.cc

const LaunchEngine& LaunchEngine::VersionIn(const std::string&) const { return *this; }

const std::vector<const LaunchEngine*>& LaunchEngines() {
  static const std::vector<const LaunchEngine*> engines = {
      &MpirunEngine(), &LocalEngine(), &SrunEngine(), &QrshEngine(), &SshEngine(), &HydraEngine()};
  return engines;
}

const LaunchEngine* FindLaunchEngine(const std::string& name) {
  for (const LaunchEngine* engine : LaunchEngines())
    if (engine->name() == name) return engine;
  return nullptr;
}

const LaunchEngine& ChooseLaunchEngine(const EngineCall& call, const std::string& path) {
  const LaunchEngine& first = *LaunchEngines().front();
  // To replace a lost rank costs less than to start all ranks again.
  for (const LaunchEngine* engine : LaunchEngines())
    if (call.restarts && !engine->starts_again() && engine->IsInstalled(path) &&
        engine->Probe(call).empty())
      return *engine;
  for (const LaunchEngine* engine : LaunchEngines())
    if (engine->IsInstalled(path) && engine->Probe(call).empty()) return *engine;
  return first;
}

namespace {

using Words = std::vector<std::string>;

constexpr char kMark = '+';

}  // namespace

void Append(std::vector<std::string>& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// ssh asks no questions and forwards neither the ssh agent nor the display. The user configures all
// other options.
std::vector<std::string> SshArguments(const Reach& reach) {
  Words words = {"-x", "-a",
                 "-o", "BatchMode=yes",
                 "-o", base::Text("ConnectTimeout=", reach.connect_timeout_s)};
  if (reach.ssh_port > 0) Append(words, {"-p", base::Text(reach.ssh_port)});
  if (!reach.ssh_identity.empty()) Append(words, {"-i", reach.ssh_identity});
  Append(words, reach.ssh_arguments);
  return words;
}

std::vector<std::string> RemoteShell(const Reach& reach) {
  // Open MPI takes several commands, separated by colons, and tries each. dtrun uses the first.
  const std::string own = reach.remote_shell.substr(0, reach.remote_shell.find(':'));
  if (!own.empty()) return SplitWords(own);
  Words words = {"ssh"};
  Append(words, SshArguments(reach));
  words.push_back("--");
  return words;
}

namespace {

bool HasPart(std::string_view words, std::string_view part) {
  return words.find(part) != std::string_view::npos;
}

}  // namespace

bool MayAnswerLater(std::string_view words) {
  return words.starts_with("ssh: ") || words.starts_with("Connection ") ||
         HasPart(words, "kex_exchange_identification: ");
}

bool IsFailureOfSsh(std::string_view words) {
  return MayAnswerLater(words) || HasPart(words, ": Permission denied (") ||
         words.starts_with("Host key verification failed.");
}

std::string RemotePath(const Reach& reach, const std::string& file) {
  return reach.parses_command ? ShellQuoted(file) : file;
}

std::string SshHost(const std::string& name) {
  return name.starts_with('[') ? name.substr(1, name.size() - 2) : name;
}

std::vector<std::string> MarkWords(const std::vector<std::string>& words) {
  Words marked;
  for (const std::string& word : words) marked.push_back(kMark + word);
  return marked;
}

std::vector<std::string> UnmarkWords(const std::vector<std::string>& words) {
  Words unmarked;
  for (const std::string& word : words)
    unmarked.push_back(word.starts_with(kMark) ? word.substr(1) : word);
  return unmarked;
}

}  // namespace dtrun::launcher
