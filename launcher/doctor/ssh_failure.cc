#include "launcher/doctor/ssh_failure.h"

#include "base/text.h"
#include "base/version.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

// What ssh says, and what helps.
struct KnownFailure {
  const char* part;
  const char* thing;
  const char* expected;
  const char* advice;
};

constexpr KnownFailure kKnown[] = {
    {"Permission denied", "ssh login", "a login that asks for nothing",
     "ssh-copy-id brings your key there, --ssh-identity FILE names another one"},
    {"Too many authentication failures", "ssh login", "a login that asks for nothing",
     "--ssh-identity FILE names the right key"},
    {"Host key verification failed", "ssh host key", "a host key that is known",
     "look with ssh, by hand, whether it is the right host"},
    {"Could not resolve hostname", "name", "a name with an address",
     "see /etc/hosts, DNS and ~/.ssh/config"},
    {"Connection refused", "ssh port", "an sshd that listens",
     "start sshd there, or give its --ssh-port"},
    {"No route to host", "ssh port", "a way to it", "see cables, addresses and firewalls"},
    {"timed out", "ssh port", "an answer", "see whether it is up, and firewalls"},
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
        "install the packages that dtrun needs there: openmpi-bin brings them all"};
  for (const KnownFailure& known : kKnown)
    if (exit_code == 255 && Has(why, known.part))
      return {true, known.thing, why, known.expected, known.advice};
  if (exit_code == 126 || exit_code == 127)
    return {
        true, "dtrun", why.empty() ? "nothing that can be run" : why, installed,
        "install it there at the same place, or share that folder"};
  return {
      true, "ssh", why.empty() ? Text("it ended with ", exit_code, " and without a word") : why,
      "a probe that answers", Text("try: ssh -o BatchMode=yes ", ShellQuoted(host), " true")};
}

}  // namespace dtrun::launcher
