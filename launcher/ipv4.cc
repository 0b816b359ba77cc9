#include "launcher/ipv4.h"

#include <arpa/inet.h>

#include "base/text.h"

namespace dtrun::launcher {
namespace {

uint32_t Mask(int bits) { return bits == 0 ? 0 : ~uint32_t{0} << (32 - bits); }

}  // namespace

std::optional<uint32_t> Ipv4(const std::string& address) {
  in_addr bits;
  if (inet_pton(AF_INET, address.c_str(), &bits) != 1) return std::nullopt;
  return ntohl(bits.s_addr);
}

std::string Ipv4Text(uint32_t address) {
  const in_addr bits = {htonl(address)};
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &bits, text, sizeof text);
  return text;
}

Ipv4Network Ipv4Network::Of(uint32_t address, int bits) { return {address & Mask(bits), bits}; }

bool Ipv4Network::Has(uint32_t address) const { return (address & Mask(bits)) == first; }

std::string Ipv4Network::text() const { return base::Text(Ipv4Text(first), '/', bits); }

bool IsInNetwork(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto first = Ipv4(network.substr(0, slash)), own = Ipv4(address);
  const int64_t bits = base::ParseInteger(network.substr(slash + 1)).value_or(-1);
  if (!first || !own || bits < 0 || bits > 32) return false;
  return Ipv4Network::Of(*first, static_cast<int>(bits)).Has(*own);
}

}  // namespace dtrun::launcher
