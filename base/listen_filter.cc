#include "base/listen_filter.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.h"

namespace dtrun::base {

std::vector<AddressBlock> ParseAddressBlocks(const std::string& list) {
  std::vector<AddressBlock> blocks;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    begin = end + 1;
    const size_t slash = item.find('/');
    in_addr address = {};
    if (slash == std::string::npos ||
        inet_pton(AF_INET, item.substr(0, slash).c_str(), &address) != 1)
      continue;
    char* rest = nullptr;
    const long bits = std::strtol(item.c_str() + slash + 1, &rest, 10);
    if (*rest != '\0' || rest == item.c_str() + slash + 1 || bits < 0 || bits > 32) continue;
    const uint32_t mask = bits == 0 ? 0 : ~uint32_t{0} << (32 - bits);
    blocks.push_back({ntohl(address.s_addr) & mask, mask});
  }
  return blocks;
}

std::optional<PortRange> ParsePortRange(const std::string& text) {
  if (text == "any") return PortRange{};
  const std::vector<std::string> ends = Split(text, '-');
  const auto first = ParseInteger(ends.front()), last = ParseInteger(ends.back());
  if (ends.size() > 2 || !first || !last || *first < 1 || *last < *first || *last > 65535)
    return std::nullopt;
  return PortRange{static_cast<int>(*first), static_cast<int>(*last)};
}

std::string ShowPortRange(const PortRange& range) {
  if (range == PortRange{}) return "any";
  return range.first == range.last ? Text(range.first) : Text(range.first, '-', range.last);
}

// The filter sees each segment from its TCP header on. The destination address lies in the IP
// header before it (RFC 791, section 3.1).
bool ListenOnlyAt(int file, const std::vector<AddressBlock>& blocks) {
  constexpr uint32_t kDestination = static_cast<uint32_t>(SKF_NET_OFF) + 16, kAll = ~uint32_t{0};
  int family = AF_INET;
  socklen_t size = sizeof family;
  getsockopt(file, SOL_SOCKET, SO_DOMAIN, &family, &size);
  std::vector<sock_filter> steps;
  if (family == AF_INET)
    for (const AddressBlock& block : blocks) {
      steps.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kDestination));
      steps.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, block.mask));
      steps.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, block.first, 0, 1));
      steps.push_back(BPF_STMT(BPF_RET | BPF_K, kAll));
    }
  steps.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  if (steps.size() > BPF_MAXINSNS) return false;
  const sock_fprog program = {static_cast<unsigned short>(steps.size()), steps.data()};
  return setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

std::vector<int> ListeningSockets() {
  std::vector<int> sockets;
  DIR* files = opendir("/proc/self/fd");
  if (files == nullptr) return sockets;
  while (const dirent* entry = readdir(files)) {
    const int file = std::atoi(entry->d_name);
    int listens = 0, family = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    size = sizeof family;
    if (getsockopt(file, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
        (family == AF_INET || family == AF_INET6))
      sockets.push_back(file);
  }
  closedir(files);
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

}  // namespace dtrun::base
