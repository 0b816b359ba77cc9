#ifndef DTRUN_LAUNCHER_IPV4_H_
#define DTRUN_LAUNCHER_IPV4_H_

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::launcher {

/// A number for an IPv4 address, whose bits compare; nothing for any other text.
std::optional<uint32_t> Ipv4(const std::string& address);
std::string Ipv4Text(uint32_t address);

/// A network of addresses that begin with the same bits.
struct Ipv4Network {
  uint32_t first;
  int bits;  ///< 0 to 32

  /// That of `address`.
  static Ipv4Network Of(uint32_t address, int bits);

  bool Has(uint32_t address) const;
  std::string text() const;  ///< "10.1.0.0/16"
};

/// Whether IPv4 `address` lies in `network`, "10.1.0.0/16".
bool IsInNetwork(const std::string& address, const std::string& network);

}  // namespace dtrun::launcher

#endif
