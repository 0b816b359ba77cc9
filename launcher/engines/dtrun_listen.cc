// dtrun_listen.so: a library that is preloaded into mpirun and orted. Both listen at all addresses
// of their host, even if they are told which networks to use. Here, a socket bound to all addresses
// is bound to the address in a network of DTRUN_LISTEN_IN ("10.1.0.0/16,10.2.3.4/32"). If the host
// has several such addresses, a kernel filter drops packets for all others. IPv6 sockets fail.
//
// Programs that mpirun and orted start do not load this library: Prepare removes it from LD_PRELOAD
// and unsets DTRUN_LISTEN_IN. If mpirun is a script, its shell keeps both variables.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/listen_filter.h"

namespace {

using dtrun::base::AddressBlock;

// This host's addresses in the networks, in network byte order.
std::vector<in_addr_t> AddressesIn(const std::vector<AddressBlock>& networks) {
  std::vector<in_addr_t> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const in_addr_t address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr;
    for (const AddressBlock& network : networks) {
      if (!network.Has(ntohl(address))) continue;
      found.push_back(address);
      break;
    }
  }
  freeifaddrs(all);
  return found;
}

bool IsOfOpenMpi(std::string_view program) {
  for (const char* name : {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted"})
    if (program == name) return true;
  return false;
}

// Whether this program has the runtime of Open MPI 4 or 5. The mpirun of Open MPI 5 has not: it
// becomes prterun, which then loads this library anew.
bool HasRuntime() {
  return dlsym(RTLD_DEFAULT, "orte_init") != nullptr || dlsym(RTLD_DEFAULT, "prte_init") != nullptr;
}

// Removes this library, the first entry of LD_PRELOAD.
void ForgetPreload() {
  const char* preload = std::getenv("LD_PRELOAD");
  const char* rest = preload == nullptr ? nullptr : std::strchr(preload, ':');
  if (rest == nullptr || rest[1] == '\0')
    unsetenv("LD_PRELOAD");
  else
    setenv("LD_PRELOAD", std::string(rest + 1).c_str(), 1);
}

// Never destroyed: threads may still open sockets while the program ends.
std::vector<AddressBlock>* networks = nullptr;  // null: sockets are not changed
in_addr_t only_address = 0;                     // 0: several addresses

__attribute__((constructor)) void Prepare() {
  const char* list = std::getenv("DTRUN_LISTEN_IN");
  if (list == nullptr || !IsOfOpenMpi(program_invocation_short_name) || !HasRuntime()) return;
  auto wanted = dtrun::base::ParseAddressBlocks(list);
  const std::vector<in_addr_t> own = AddressesIn(wanted);
  if (!own.empty()) networks = new auto(std::move(wanted));
  if (own.size() == 1) only_address = own[0];
  unsetenv("DTRUN_LISTEN_IN");
  ForgetPreload();
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int bind(
    int file, const sockaddr* address, socklen_t size) {
  static const auto next = Next<int (*)(int, const sockaddr*, socklen_t)>("bind");
  sockaddr_in any = {};
  if (networks == nullptr || size < sizeof any || address->sa_family != AF_INET)
    return next(file, address, size);
  std::memcpy(&any, address, sizeof any);
  if (any.sin_addr.s_addr != htonl(INADDR_ANY)) return next(file, address, size);
  if (only_address == 0) dtrun::base::ListenOnlyAt(file, *networks);
  any.sin_addr.s_addr = only_address;
  return next(file, reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

extern "C" __attribute__((visibility("default"))) int socket(int family, int type, int protocol) {
  static const auto next = Next<int (*)(int, int, int)>("socket");
  if (networks == nullptr || family != AF_INET6) return next(family, type, protocol);
  errno = EAFNOSUPPORT;  // as on a host without IPv6
  return -1;
}
