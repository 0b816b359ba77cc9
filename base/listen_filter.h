#ifndef DTRUN_BASE_LISTEN_FILTER_H_
#define DTRUN_BASE_LISTEN_FILTER_H_

#include <cstdint>
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

/// Makes the kernel drop packets to the listening TCP socket `file` for addresses of this host
/// outside `blocks`, and all IPv6 packets. Accepted connections inherit the filter. Needs no
/// privileges. Returns false if the kernel refuses.
bool ListenOnlyAt(int file, const std::vector<AddressBlock>& blocks);

/// The descriptors of this process's listening TCP sockets, in ascending order.
std::vector<int> ListeningSockets();

}  // namespace dtrun::base

#endif  // DTRUN_BASE_LISTEN_FILTER_H_
