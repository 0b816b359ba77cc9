#ifndef DTRUN_RUNTIME_MACHINE_H_
#define DTRUN_RUNTIME_MACHINE_H_

#include <functional>
#include <string>
#include <vector>

namespace dtrun::runtime {

/// What is asked of the machine that this process runs on. A value, so that tests can be another.
struct Machine {
  std::string host_name;
  /// Whether a name or an address is one of this machine. May take as long as the system's
  /// resolver does.
  std::function<bool(const std::string& name)> is_own;
  /// The words of this process's own command line.
  std::function<std::vector<std::string>()> command;
};

Machine ThisMachine();

/// The words as a shell reads them: "./train 'a b'".
std::string ShellLine(const std::vector<std::string>& words);

}  // namespace dtrun::runtime

#endif
