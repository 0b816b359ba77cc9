#ifndef DTRUN_RUNTIME_PARAMETER_SERVER_HMAC_SHA256_H_
#define DTRUN_RUNTIME_PARAMETER_SERVER_HMAC_SHA256_H_

#include <string>

namespace dtrun::runtime {

/// SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), 32 bytes each. libdtrun needs no library but
/// the compiler's own, and proves with these alone that a peer belongs to the job.
std::string Sha256(const std::string& bytes);
std::string HmacSha256(const std::string& key, const std::string& bytes);

/// In a time that does not depend on where they differ.
bool EqualInConstantTime(const std::string& a, const std::string& b);

}  // namespace dtrun::runtime

#endif
