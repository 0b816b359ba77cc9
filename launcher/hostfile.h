#ifndef DTRUN_LAUNCHER_HOSTFILE_H_
#define DTRUN_LAUNCHER_HOSTFILE_H_

#include <string>
#include <vector>

#include "launcher/host.h"

namespace dtrun::launcher {

/// The hosts of a host file, one a line, as Open MPI's and Horovod's users write it:
///   # comment
///   node1 slots=4 max_slots=8     node2:4     [fd00::3] max-slots=2
/// Line ends of Unix and of Windows, and a byte order mark, are understood. Every host has a line,
/// "FILE:LINE", as its origin. `name` is the file's, for messages.
/// Throws UsageError "FILE:LINE:COLUMN: found ..., expected ..." for anything else, for a host that
/// stands there twice and for a file without hosts.
std::vector<Host> ParseHostfile(const std::string& name, const std::string& text);

}  // namespace dtrun::launcher

#endif
