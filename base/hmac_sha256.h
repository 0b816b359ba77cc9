#ifndef DTRUN_BASE_HMAC_SHA256_H_
#define DTRUN_BASE_HMAC_SHA256_H_

#include <string>

namespace dtrun::base {

/// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104): 32 bytes each. They prove that a peer belongs
/// to the job. They are here because libdtrun needs no library but the compiler's own.
std::string Sha256(const std::string& bytes);
std::string HmacSha256(const std::string& key, const std::string& bytes);

/// Compares in a time that does not depend on the position of a difference.
bool EqualInConstantTime(const std::string& a, const std::string& b);

}  // namespace dtrun::base

#endif
