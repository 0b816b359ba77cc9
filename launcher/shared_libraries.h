#ifndef DTRUN_LAUNCHER_SHARED_LIBRARIES_H_
#define DTRUN_LAUNCHER_SHARED_LIBRARIES_H_

#include <string>

namespace dtrun::launcher {

/// The dynamic loader that a program asks for, from the start of its file; "" for a script, a
/// static program, or one whose header names it beyond that start.
std::string LoaderOf(const std::string& start);

/// Whether `file` asks for a dynamic loader that, in this process's environment, does not find a
/// shared library of it. The program is not run: the loader is, as by ldd.
bool LacksSharedLibrary(const std::string& file);

}  // namespace dtrun::launcher

#endif
