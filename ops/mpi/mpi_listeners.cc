#include "ops/mpi/mpi_listeners.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>

#include <algorithm>
#include <string>

#include "base/listen_filter.h"

namespace dtrun::ops::mpi {
namespace {

// The value of a parameter of Open MPI, from any of its sources; "" if there is no such parameter.
std::string ParameterOfMpi(const char* name) {
  int level = 0, index = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return "";
  std::string value;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    value.resize(static_cast<size_t>(std::max(count, 1)));
    if (MPI_T_cvar_read(handle, value.data()) != MPI_SUCCESS) value.clear();
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value.substr(0, value.find('\0'));
}

// The list may also name interfaces.
std::vector<base::AddressBlock> BlocksOf(const std::string& list) {
  std::vector<base::AddressBlock> blocks = base::ParseAddressBlocks(list);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return blocks;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if (("," + list + ",").find(std::string(",") + each->ifa_name + ",") == std::string::npos)
      continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    blocks.push_back({ntohl(address->sin_addr.s_addr), ~uint32_t{0}});
  }
  freeifaddrs(all);
  return blocks;
}

}  // namespace

void NarrowListeners(const std::vector<int>& before) {
  const std::vector<base::AddressBlock> blocks = BlocksOf(ParameterOfMpi("btl_tcp_if_include"));
  if (blocks.empty()) return;
  for (const int socket : base::ListeningSockets())
    if (!std::binary_search(before.begin(), before.end(), socket))
      base::ListenOnlyAt(socket, blocks);
}

}  // namespace dtrun::ops::mpi
