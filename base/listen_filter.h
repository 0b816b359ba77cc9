#ifndef DTRUN_BASE_LISTEN_FILTER_H_
#define DTRUN_BASE_LISTEN_FILTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrun::base {

/// The addresses of an IPv4 network, in the byte order of this machine.
struct AddressBlock {
  uint32_t first, mask;
  bool Has(uint32_t address) const { return (address & mask) == first; }
  bool operator==(const AddressBlock&) const = default;
};

/// The networks in a list such as "10.1.0.0/16,10.2.3.4/32". Items that are no networks are left
/// out. Pure.
std::vector<AddressBlock> ParseAddressBlocks(const std::string& list);

/// TCP ports, from which a listener takes the first that is free. 0 to 0: any port of the kernel's
/// choice.
struct PortRange {
  int first = 0, last = 0;
  bool operator==(const PortRange&) const = default;
};

/// "20000-20099" -> 20000 to 20099, "7000" -> 7000 to 7000, "any" -> 0 to 0. nullopt if the text is
/// no range of ports from 1 to 65535. Pure.
std::optional<PortRange> ParsePortRange(const std::string& text);
std::string ShowPortRange(const PortRange& range);

/// Makes the kernel drop packets to the listening TCP socket `file` for addresses of this host
/// outside `blocks`, and all IPv6 packets. Accepted connections inherit the filter. Needs no
/// privileges. Returns false if the kernel refuses.
bool ListenOnlyAt(int file, const std::vector<AddressBlock>& blocks);

/// The descriptors of this process's listening TCP sockets, in ascending order.
std::vector<int> ListeningSockets();

}  // namespace dtrun::base

#endif  // DTRUN_BASE_LISTEN_FILTER_H_
