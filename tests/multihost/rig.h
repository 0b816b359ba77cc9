#ifndef DTRUN_TESTS_MULTIHOST_RIG_H_
#define DTRUN_TESTS_MULTIHOST_RIG_H_

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

using Words = std::vector<std::string>;

inline constexpr char kDtrun[] = "launcher/dtrun";

/// `command` on the first of the hosts that `options` describe: see with_hosts. The time limit
/// allows for busy machines.
inline Command OnHosts(
    const Words& command, const Words& options = {},
    std::vector<std::pair<std::string, std::string>> environment = {}) {
  Words argv = {"tests/multihost/with_hosts"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back("--");
  argv.insert(argv.end(), command.begin(), command.end());
  return Command{
      .argv = argv, .environment = std::move(environment), .timeout = std::chrono::minutes(10)};
}

inline Command ScriptOnHosts(const std::string& script, const Words& options = {}) {
  return OnHosts({"sh", "-c", script}, options);
}

/// Whether a program of this folder says that this machine lacks something. If so, prints the
/// reason.
inline bool LacksSomething(const CommandResult& result) {
  constexpr int kMissing = 77;
  if (result.exit_code != kMissing) return false;
  std::printf("SKIPPED: %s", result.err.c_str());
  return true;
}

/// Whether this machine cannot make hosts. If so, each call prints the reason. Every test case
/// calls this first.
inline bool Skipped() {
  static const CommandResult result = Run(OnHosts({"true"}));
  return LacksSomething(result);
}

// Shell code. kBlockSsh makes an ssh that fails: put /run/no_ssh first in PATH. After kLeft, `left`
// prints the processes of jobs that run on h1 and h2, and `soon_none` those that are left after 5
// s.
inline const std::string kBlockSsh =
    "mkdir /run/no_ssh; printf '#!/bin/sh\necho ssh is blocked >&2; exit 255\n' "
    ">/run/no_ssh/ssh; chmod +x /run/no_ssh/ssh; ";
inline const std::string kLeft =
    "left() { for h in h1 h2; do /usr/bin/ssh $h ps -e -o args= | grep -E "
    "'dtrun_|launcher/dtrun|tests/ranks' | grep -v grep; done; }; "
    "soon_none() { for i in $(seq 50); do [ -n \"$(left)\" ] || return 0; sleep 0.1; done; left; "
    "}; ";

}  // namespace dtrun::testing

#endif
