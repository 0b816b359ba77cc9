#ifndef DTRUN_LAUNCHER_DOCTOR_CHECKSUM_H_
#define DTRUN_LAUNCHER_DOCTOR_CHECKSUM_H_

#include <string>

namespace dtrun::launcher {

/// The SHA-256 of a file in hexadecimal digits; "" when it cannot be read.
std::string Sha256OfFile(const std::string& path);

}  // namespace dtrun::launcher

#endif
