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

/// The networks in a list such as "10.1.0.0/16,10.2.3.4/32". Whatever is no network is left out.
/// Pure.
std::vector<AddressBlock> ParseAddressBlocks(const std::string& list);

/// Has the kernel drop what comes to the listening TCP socket `file` for an address of this host
/// outside `blocks`, and everything that is IPv6. What the socket accepts inherits that. Needs no
/// rights. False where the kernel refuses.
bool ListenOnlyAt(int file, const std::vector<AddressBlock>& blocks);

/// This process's TCP sockets that listen: descriptors, in ascending order.
std::vector<int> ListeningSockets();

}  // namespace dtrun::base

#endif  // DTRUN_BASE_LISTEN_FILTER_H_
