// LookAt gets the real name and port of the host from `ssh -G`, connects to that port, and runs the
// probe by ssh. A step that fails adds a finding to `reach`.

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "base/version.h"
#include "launcher/doctor/diagnosis.h"
#include "launcher/doctor/host_facts.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::AsciiJsonText;
using base::ParseJson;
using base::Text;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kKnockPatience{10};

// The real name and port to which ssh connects for a host. The user's configuration may change
// both.
struct SshTarget {
  std::string name;
  std::string port = "22";
  bool direct = true;  // without a jump host or a proxy command
};

SshTarget AskSsh(const std::string& host, const LookPlan& plan) {
  SshTarget target = {SshHost(host)};
  std::vector<std::string> words = {"ssh", "-G"};
  for (const std::string& word : SshArguments(plan.reach)) words.push_back(word);
  words.insert(words.end(), {"--", target.name});
  for (const std::string& line : base::Split(RunToEnd(words, plan.deadline).out, '\n')) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string key = line.substr(0, space), value = line.substr(space + 1);
    if (key == "hostname") target.name = value;
    if (key == "port") target.port = value;
    if (key == "proxycommand" || key == "proxyjump") target.direct = value == "none";
  }
  return target;
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

std::string AddressText(const addrinfo& address) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Connects to `address`. Returns nullopt if a server accepts the connection, otherwise the reason.
std::optional<std::string> Knock(const addrinfo& address, Clock::time_point deadline) {
  const int door = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (door < 0) return std::strerror(errno);
  int error = 0;
  if (connect(door, address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd ready = {door, POLLOUT, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    socklen_t size = sizeof error;
    if (poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0)
      error = ETIMEDOUT;
    else
      getsockopt(door, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  close(door);
  if (error == 0) return std::nullopt;
  return strerrordesc_np(error);
}

constexpr char kFixName[] =
    "add the host to /etc/hosts, to DNS or to ~/.ssh/config, until \"ssh HOST true\" works";

std::string WithHost(const std::string& advice, const std::string& host) {
  const std::string name = "HOST";
  const size_t at = advice.find(name);
  if (at == std::string::npos) return advice;
  return Text(advice.substr(0, at), SshHost(host), advice.substr(at + name.size()));
}

// Sets the address at which sshd answers. If there is none, adds a finding and returns false.
bool FindAddress(const SshTarget& target, const LookPlan& plan, HostLook& look) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(target.name.c_str(), target.port.c_str(), &hints, &first);
  const Addresses addresses(first, freeaddrinfo);
  if (error != 0) {
    look.reach.push_back(
        {true, "name", Text(target.name, ": ", gai_strerror(error)), "a name with an address",
         WithHost(kFixName, target.name)});
    return false;
  }
  const auto patience = std::min(plan.deadline, Clock::now() + kKnockPatience);
  std::string found;
  for (const addrinfo* address = first; address != nullptr; address = address->ai_next) {
    const auto why = Knock(*address, patience);
    look.address = AddressText(*address);
    if (!why) return true;
    found += Text(found.empty() ? "" : ", ", look.address, " port ", target.port, ": ", *why);
  }
  look.reach.push_back(
      {true, "ssh port", found, "an sshd that answers",
       "check that the host is up, that sshd listens (systemctl start ssh) on this port "
       "(--ssh-port), and that no firewall blocks the port"});
  return false;
}

int64_t WallClockNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Output before the greeting comes from a startup file of the remote shell. It would also disturb
// the messages of a job.
bool ReadGreeting(Child& probe, const LookPlan& plan, HostLook& look) {
  std::string noise;
  while (const auto line = probe.ReadLine(plan.deadline)) {
    if (line->starts_with(kProbeGreeting)) {
      if (!noise.empty())
        look.reach.push_back(
            {true, "shell", Excerpt(noise) + " on stdout",
             "no output of a shell without a terminal",
             WithHost(
                 "let the startup file of the shell (~/.bashrc) write in interactive shells only, "
                 "until \"ssh HOST true\" prints nothing",
                 look.host)});
      const std::string version = line->substr(line->find(' ') + 1);
      if (version == base::kVersion) return true;
      look.reach.push_back(
          {true, "dtrun", "version " + version, Text("version ", base::kVersion, ", as here"),
           "install the same version everywhere"});
      return false;
    }
    if (noise.empty()) noise = *line;
  }
  const auto exit_code = probe.Wait(plan.deadline);
  Finding failure = exit_code ? FailureOf(look.host, plan.probe, probe.complaint(), *exit_code)
                              : Finding{
                                    true, "ssh", "no answer within the time of --start-timeout",
                                    "an answer", "check whether the host is overloaded"};
  if (!plan.reach.by_ssh && failure.thing.starts_with("ssh")) {
    std::vector<std::string> words = RemoteShell(plan.reach);
    failure.thing = words.front();
    words.insert(words.end(), {SshHost(look.host), "true"});
    if (exit_code) failure.advice = "try: " + ShellLine(words);
  }
  look.reach.push_back(failure);
  return false;
}

bool ReadClock(Child& probe, const LookPlan& plan, HostLook& look) {
  const int64_t asked = WallClockNs();
  probe.Write(AsciiJsonText(plan.request) + "\n");
  const auto line = probe.ReadLine(plan.deadline);
  const int64_t answered = WallClockNs();
  if (!line || !line->starts_with(kProbeClock)) return false;
  const auto theirs = base::ParseInteger(line->substr(line->find(' ') + 1));
  if (!theirs) return false;
  look.clock_uncertainty_s = static_cast<double>(answered - asked) / 2e9;
  look.clock_offset_s = static_cast<double>(*theirs - asked) / 1e9 - look.clock_uncertainty_s;
  return true;
}

bool ReadFacts(Child& probe, const LookPlan& plan, HostLook& look) {
  const auto line = probe.ReadLine(plan.deadline);
  if (!line) return false;
  try {
    look.facts = ParseJson(*line).get<HostFacts>();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

void AskProbe(const Target& target, const LookPlan& plan, HostLook& look) {
  std::vector<std::string> words = {plan.probe};
  if (!target.on_this_machine) {
    words = RemoteShell(plan.reach);
    words.insert(words.end(), {SshHost(target.host), RemotePath(plan.reach, plan.probe)});
  }
  Child probe(words);
  if (!ReadGreeting(probe, plan, look)) return;
  look.answered = ReadClock(probe, plan, look) && ReadFacts(probe, plan, look);
  const auto exit_code = probe.Wait(look.answered ? Clock::now() : plan.deadline);
  if (look.answered) return;
  const std::string why = LastLineOf(probe.complaint());
  look.reach.push_back(
      {true, "probe",
       !exit_code     ? "no answer within the time of --start-timeout"
       : !why.empty() ? why
                      : Text("exit code ", *exit_code),
       "the facts of the host", "check whether the host is overloaded"});
}

}  // namespace

HostLook LookAt(const Target& target, const LookPlan& plan) {
  HostLook look = {.host = target.host, .slots = target.slots, .address = ""};
  if (!target.on_this_machine && plan.reach.by_ssh) {
    const SshTarget ssh = AskSsh(target.host, plan);
    if (ssh.direct && !FindAddress(ssh, plan, look)) return look;
    if (!ssh.direct) look.address = ssh.name;
  } else if (!target.on_this_machine) {
    look.address = target.host;
  }
  AskProbe(target, plan, look);
  return look;
}

namespace {

using base::Text;

// A message of ssh, with the finding for it. HOST in the advice is the host.
struct KnownFailure {
  const char* part;
  const char* thing;
  const char* expected;
  const char* advice;
};

constexpr KnownFailure kKnown[] = {
    {"Permission denied", "ssh login", "a login without a password",
     "ssh-copy-id HOST copies your key to the host; --ssh-identity FILE names another key"},
    {"Too many authentication failures", "ssh login", "a login without a password",
     "name the right key with --ssh-identity FILE"},
    {"Host key verification failed", "ssh host key", "a known host key",
     "log in once with \"ssh HOST\", and compare the host key"},
    {"Could not resolve hostname", "name", "a name with an address", kFixName},
    {"Connection refused", "ssh port", "an sshd that listens",
     "start sshd on the host (systemctl start ssh), or name its port with --ssh-port"},
    {"No route to host", "ssh port", "a route to the host",
     "check cables, addresses and firewalls"},
    {"timed out", "ssh port", "an answer", "check whether the host is up, and firewalls"},
};

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

std::string LastLineOf(const std::string& text) {
  const size_t last = text.find_last_not_of("\r\n \t");
  if (last == std::string::npos) return "";
  const size_t line = text.rfind('\n', last);
  const size_t begin = line == std::string::npos ? 0 : line + 1;
  return text.substr(begin, last + 1 - begin);
}

Finding FailureOf(
    const std::string& host, const std::string& probe, const std::string& complaint,
    int exit_code) {
  const std::string why = LastLineOf(complaint);
  const std::string installed = Text("dtrun ", base::kVersion, ", with ", ShellQuoted(probe));
  if (Has(why, "error while loading shared libraries"))
    return {
        true, "dtrun", why, "a probe that starts",
        "install the packages that dtrun needs on the host: openmpi-bin depends on all of them"};
  for (const KnownFailure& known : kKnown)
    if (exit_code == 255 && Has(why, known.part))
      return {true, known.thing, why, known.expected, WithHost(known.advice, host)};
  if (exit_code == 126 || exit_code == 127)
    return {
        true, "dtrun", why.empty() ? "no program that can be run" : why, installed,
        "install dtrun at the same path on the host, or share the folder of dtrun"};
  return {
      true, "ssh", why.empty() ? Text("exit code ", exit_code, " and no message") : why,
      "a probe that answers", Text("try: ssh -o BatchMode=yes ", ShellQuoted(host), " true")};
}

}  // namespace dtrun::launcher
