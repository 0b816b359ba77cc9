#include "launcher/doctor/checksum.h"

#include <openssl/evp.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

namespace dtrun::launcher {

std::string Sha256OfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(
      EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!file || !context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return "";
  std::vector<char> bytes(1 << 20);
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (file.bad()) return "";
    EVP_DigestUpdate(context.get(), bytes.data(), static_cast<size_t>(file.gcount()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (EVP_DigestFinal_ex(context.get(), digest, &length) != 1) return "";
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", digest[i]);
    text += digits;
  }
  return text;
}

}  // namespace dtrun::launcher
