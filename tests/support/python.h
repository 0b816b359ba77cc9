#ifndef DTRUN_TESTS_SUPPORT_PYTHON_H_
#define DTRUN_TESTS_SUPPORT_PYTHON_H_

#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

/// The Python in build/python, which scripts/test installs. It has packages of other projects that
/// read dtrun's file formats. A target with this library in `deps` has the list of packages among
/// its runfiles. That runfile is a link into the repository.

/// Whether build/python is missing or out of date. If so, prints the line that counts the test as
/// skipped.
///
///   TEST_CASE("...") {
///     if (PythonIsMissing()) return;
bool PythonIsMissing();

/// The folder that `scripts/test --full` has installed in build/: "mpi/open_mpi". "": it is not
/// there, as the printed line says, which counts the test as skipped.
std::string FullFolder(const std::string& name);

/// Runs a script of the runfiles: {"tests/models/formats/read_events.py", folder}.
CommandResult RunPython(const std::vector<std::string>& script);

}  // namespace dtrun::testing

#endif
