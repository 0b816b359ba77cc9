#include "base/listen_filter.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

namespace dtrun::base {
namespace {

using Blocks = std::vector<AddressBlock>;

TEST_CASE("a list of networks is parsed and invalid items are left out") {
  CHECK(
      ParseAddressBlocks("10.1.2.3/16,127.0.0.1/32") ==
      Blocks{{0x0a010000, 0xffff0000}, {0x7f000001, 0xffffffff}});
  CHECK(ParseAddressBlocks("0.0.0.0/0") == Blocks{{0, 0}});
  for (const char* none :
       {"", "eth0", "10.1.0.0", "10.1.0.0/", "10.1.0.0/33", "10.1.0.0/-1", "10.1.0.0/8x",
        "fd00::/8", ",,"})
    CHECK(ParseAddressBlocks(none).empty());
  CHECK(ParseAddressBlocks("eth0,10.0.0.0/8") == Blocks{{0x0a000000, 0xff000000}});
}

// Whether a connection to this address succeeds within 300 ms.
bool Connects(const char* address, in_port_t port) {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = port;
  inet_pton(AF_INET, address, &there.sin_addr);
  connect(file, reinterpret_cast<const sockaddr*>(&there), sizeof there);
  pollfd ready = {file, POLLOUT, 0};
  int error = 1;
  socklen_t size = sizeof error;
  if (poll(&ready, 1, 300) == 1) getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
  close(file);
  return error == 0;
}

TEST_CASE("a filtered listening socket accepts connections only in its networks") {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  REQUIRE(bind(file, reinterpret_cast<const sockaddr*>(&any), size) == 0);
  REQUIRE(listen(file, 8) == 0);
  REQUIRE(getsockname(file, reinterpret_cast<sockaddr*>(&any), &size) == 0);
  const std::vector<int> listening = ListeningSockets();
  CHECK(std::count(listening.begin(), listening.end(), file) == 1);
  CHECK(Connects("127.0.0.1", any.sin_port));
  REQUIRE(ListenOnlyAt(file, ParseAddressBlocks("127.1.0.0/16,127.2.0.9/32")));
  CHECK(Connects("127.1.0.1", any.sin_port));
  CHECK(Connects("127.2.0.9", any.sin_port));
  CHECK_FALSE(Connects("127.0.0.1", any.sin_port));
  CHECK_FALSE(Connects("127.2.0.8", any.sin_port));
  close(file);
}

}  // namespace
}  // namespace dtrun::base
