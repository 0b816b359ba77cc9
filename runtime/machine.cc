#include "runtime/machine.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

#include "base/text.h"

namespace dtrun::runtime {
namespace {

std::string OwnHostName() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Only an address of this machine can be bound.
bool CanBind(const addrinfo& address) {
  const int file = ::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool bound = file >= 0 && ::bind(file, address.ai_addr, address.ai_addrlen) == 0;
  if (file >= 0) ::close(file);
  return bound;
}

bool IsOwn(const std::string& name) {
  if (name == "localhost" || name == OwnHostName()) return true;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* addresses = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &addresses) != 0) return false;
  bool own = false;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next)
    own = own || CanBind(*address);
  ::freeaddrinfo(addresses);
  return own;
}

std::vector<std::string> OwnCommand() {
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (text.empty()) return {"PROGRAM"};
  text.pop_back();  // each word ends with a zero byte
  return base::Split(text, '\0');
}

std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) ||
                       std::string("_-./:=,+@%^").find(static_cast<char>(c)) != std::string::npos);
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

Machine ThisMachine() { return {OwnHostName(), IsOwn, OwnCommand}; }

std::string ShellLine(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(Quoted(word));
  return base::Join(quoted, " ");
}

}  // namespace dtrun::runtime
