#ifndef DTRUN_TESTS_SUPPORT_PYTHON_H_
#define DTRUN_TESTS_SUPPORT_PYTHON_H_

#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace dtrun::testing {

/// The Python with other projects' readers of our formats (build/python, made by scripts/test). Who
/// has it in `deps` has its list of packages among the runfiles, and with it the repository's
/// place.

/// Whether there is none; then it has said so, in the line by which a test is counted as skipped.
///
///   TEST_CASE("...") {
///     if (PythonIsMissing()) return;
bool PythonIsMissing();

/// Runs a script of the runfiles: {"tests/models/formats/read_events.py", folder}.
CommandResult RunPython(const std::vector<std::string>& script);

}  // namespace dtrun::testing

#endif
