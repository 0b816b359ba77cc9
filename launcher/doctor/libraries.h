#ifndef DTRUN_LAUNCHER_DOCTOR_LIBRARIES_H_
#define DTRUN_LAUNCHER_DOCTOR_LIBRARIES_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// The shared libraries that `file` wants and this system does not have, looked up with
/// LD_LIBRARY_PATH set to `library_path`. Nothing of the file is run: this system's loader is
/// asked, and not the one that the file names. None for what is no dynamically linked file.
std::vector<std::string> MissingLibraries(const std::string& file, const std::string& library_path);

/// What is missing by what the loader says when it lists the libraries of a file.
///   "  libx.so.1 => not found"  ->  {"libx.so.1"}
std::vector<std::string> MissingIn(const std::string& listing);

}  // namespace dtrun::launcher

#endif
