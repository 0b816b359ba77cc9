// ssh tells each remote host its own address and this machine's address (SSH_CONNECTION). A name
// service adds missing addresses. Each agent then finds its source address for every other host.

#include "launcher/networks/network_survey.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/launch_env.h"
#include "base/text.h"
#include "launcher/support/json_number.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using nlohmann::json;

}  // namespace

// ---- Interfaces ---------------------------------------------------------------------------------

namespace {

constexpr char kFolder[] = "/sys/class/net";

int NumberIn(const std::filesystem::path& file, int otherwise) {
  std::ifstream stream(file);
  int number = otherwise;
  return stream >> number ? number : otherwise;
}

// The interface below a VLAN or a similar interface, from an entry such as "lower_eth0"; "": none.
std::string LowerOf(const std::filesystem::path& interface) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(interface, error)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("lower_")) return file.substr(6);
  }
  return "";
}

int SpeedOf(const std::string& name) {
  return std::max(0, NumberIn(std::filesystem::path(kFolder) / name / "speed", 0));
}

}  // namespace

std::string InterfaceInWords(const Interface& interface) {
  const char* kind = "";
  switch (interface.kind) {
    case InterfaceKind::kDevice: kind = "a device"; break;
    case InterfaceKind::kLoopback: kind = "loopback"; break;
    case InterfaceKind::kBridge: kind = "a bridge"; break;
    case InterfaceKind::kVirtual: kind = "virtual"; break;
  }
  return Text(
      interface.name, " (", kind, ", ",
      interface.address.empty() ? "no IPv4 address"
                                : Text(interface.address, '/', interface.prefix),
      ')');
}

InterfaceKind KindOf(const std::string& folder, const std::string& name) {
  const std::filesystem::path interface = std::filesystem::path(folder) / name;
  std::error_code ignored;
  if (NumberIn(interface / "type", -1) == ARPHRD_LOOPBACK) return InterfaceKind::kLoopback;
  if (std::filesystem::exists(interface / "bridge", ignored)) return InterfaceKind::kBridge;
  if (std::filesystem::exists(interface / "device", ignored) ||
      std::filesystem::exists(interface / "bonding", ignored))
    return InterfaceKind::kDevice;
  const std::string lower = LowerOf(interface);
  // An interface cannot be below itself, but the folder may say so.
  const bool on_device =
      !lower.empty() && lower != name &&
      std::filesystem::exists(std::filesystem::path(folder) / lower / "device", ignored);
  return on_device ? InterfaceKind::kDevice : InterfaceKind::kVirtual;
}

std::vector<Interface> OwnInterfaces() {
  std::vector<Interface> interfaces;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return interfaces;
  std::set<std::string> without_address;
  for (const ifaddrs* own = first; own != nullptr; own = own->ifa_next) {
    if ((own->ifa_flags & IFF_UP) == 0) continue;
    const std::string name = own->ifa_name;
    if (own->ifa_addr == nullptr || own->ifa_addr->sa_family != AF_INET ||
        own->ifa_netmask == nullptr) {
      without_address.insert(name);
      continue;
    }
    const auto* ip = reinterpret_cast<const sockaddr_in*>(own->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(own->ifa_netmask);
    interfaces.push_back(
        {name, Ipv4Text(ntohl(ip->sin_addr.s_addr)), std::popcount(mask->sin_addr.s_addr),
         SpeedOf(name), KindOf(kFolder, name)});
  }
  freeifaddrs(first);
  for (const Interface& interface : interfaces) without_address.erase(interface.name);
  for (const std::string& name : without_address)
    interfaces.push_back({name, "", 0, SpeedOf(name), KindOf(kFolder, name)});
  return interfaces;
}

// A line of net/tcp: "0: 0100007F:1F90 0200000A:D431 01 ... INODE ...". Addresses are in memory
// byte order. 01 means an established connection.
std::set<std::string> AddressesConnectedTo(pid_t process) {
  const std::filesystem::path folder = Text("/proc/", process);
  std::set<std::string> sockets, addresses;
  std::error_code error;
  std::filesystem::directory_iterator file(folder / "fd", error), none;
  for (; !error && file != none; file.increment(error)) {
    std::error_code closed;
    sockets.insert(std::filesystem::read_symlink(file->path(), closed));
  }
  std::ifstream table(folder / "net/tcp");
  for (std::string line; std::getline(table, line);) {
    constexpr size_t kRemote = 2, kState = 3, kInode = 9;
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; stream >> field;) fields.push_back(field);
    if (fields.size() <= kInode || fields[kState] != "01") continue;
    if (!sockets.contains(Text("socket:[", fields[kInode], "]"))) continue;
    const auto bytes = static_cast<uint32_t>(std::strtoul(fields[kRemote].c_str(), nullptr, 16));
    addresses.insert(Ipv4Text(ntohl(bytes)));
  }
  return addresses;
}

// ---- Addresses ----------------------------------------------------------------------------------

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

std::string Ipv4Network::text() const { return Text(Ipv4Text(first), '/', bits); }

bool IsInNetwork(const std::string& address, const std::string& network) {
  const size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto first = Ipv4(network.substr(0, slash)), own = Ipv4(address);
  const int64_t bits = base::ParseInteger(network.substr(slash + 1)).value_or(-1);
  if (!first || !own || bits < 0 || bits > 32) return false;
  return Ipv4Network::Of(*first, static_cast<int>(bits)).Has(*own);
}

// ---- The survey of a job ------------------------------------------------------------------------

namespace {

// How long to wait for a name service. A later answer is not expected.
constexpr std::chrono::seconds kPatience{2};

// Whether `address` is an IPv4 address that means the same on every host. 0.0.0.0 and loopback do
// not.
bool IsOfNetwork(const std::string& address) {
  const auto bits = Ipv4(address);
  return bits && *bits != 0 && (*bits >> 24) != 127;
}

void CheckInterface(const std::string& host, const Interface& interface) {
  if (!interface.address.empty() && !Ipv4(interface.address))
    throw LaunchError(
        ExitCode::kInternal,
        Text(
            host, ": found an interface with the address ", interface.address.substr(0, 40), '/',
            interface.prefix, "; expected an IPv4 address"));
}

}  // namespace

std::string AddressOfName(const std::string& name) {
  addrinfo hints = {};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &first) != 0) return "";
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(
      AF_INET, &reinterpret_cast<const sockaddr_in*>(first->ai_addr)->sin_addr, text, sizeof text);
  freeaddrinfo(first);
  return text;
}

// If a name service does not answer, only the detached thread for that name waits.
std::vector<std::string> AddressesOfNames(
    const std::vector<std::string>& names, std::chrono::milliseconds patience) {
  struct Answers {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> addresses;
    size_t missing;
  };
  const auto answers = std::make_shared<Answers>();
  answers->addresses.resize(names.size());
  answers->missing = names.size();
  const auto answer = [answers](size_t i, std::string address) {
    const std::lock_guard lock(answers->mutex);
    answers->addresses[i] = std::move(address);
    --answers->missing;
    answers->changed.notify_one();
  };
  for (size_t i = 0; i < names.size(); ++i) {
    try {
      std::thread([answer, i, name = names[i]] { answer(i, AddressOfName(name)); }).detach();
    } catch (const std::system_error&) {
      answer(i, "");  // there can be no more threads
    }
  }
  std::unique_lock lock(answers->mutex);
  answers->changed.wait_for(lock, patience, [&] { return answers->missing == 0; });
  return answers->addresses;
}

// Connecting a UDP socket sends no packet, but makes the kernel look up the route.
std::string SourceAddressTo(const std::string& address) {
  const auto bits = Ipv4(address);
  if (!bits) return "";
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(9);
  there.sin_addr.s_addr = htonl(*bits);
  const int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return "";
  sockaddr_in here = {};
  socklen_t size = sizeof here;
  const bool known = connect(probe, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&here), &size) == 0;
  close(probe);
  const std::string source = known ? Ipv4Text(ntohl(here.sin_addr.s_addr)) : "";
  return IsOfNetwork(source) ? source : "";
}

NetworkSurvey::NetworkSurvey(
    const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine) {
  for (size_t i = 0; i < hosts.size(); ++i) {
    hosts_.push_back({hosts[i], {}, {}});
    contacts_.push_back({.here = on_this_machine[i]});
  }
  const bool alone =
      std::find(on_this_machine.begin(), on_this_machine.end(), false) == on_this_machine.end();
  missing_facts_ = missing_routes_ = alone ? 0 : hosts.size();
}

json NetworkSurvey::OwnFacts() {
  return {
      {"interfaces", OwnInterfaces()}, {"ssh", base::ProcessEnv("SSH_CONNECTION").value_or("")}};
}

json NetworkSurvey::OwnRoutes(const json& peers) {
  json sources = json::array();
  for (const std::string peer : peers) sources.push_back(SourceAddressTo(peer));
  return sources;
}

std::string NetworkSurvey::AddressIn(const json& facts) {
  const std::vector<std::string> ssh = base::Split(facts.at("ssh"), ' ');
  return ssh.size() == 4 && IsOfNetwork(ssh[2]) ? ssh[2] : "";
}

// SSH_CONNECTION is "client port server port". On this machine, it describes the user's own login,
// so it is ignored.
bool NetworkSurvey::HearFacts(size_t host, const json& facts) {
  if (missing_facts_ == 0 || contacts_[host].has_said) return false;
  for (const json& interface : facts.at("interfaces")) {
    WholeNumber(interface, "prefix", 0, 32);
    WholeNumber(interface, "speed_mbit", INT32_MIN, INT32_MAX);
  }
  auto interfaces = facts.at("interfaces").get<std::vector<Interface>>();
  for (const Interface& interface : interfaces) CheckInterface(hosts_[host].host, interface);
  hosts_[host].interfaces = std::move(interfaces);
  Contact& contact = contacts_[host];
  const std::vector<std::string> ssh = base::Split(facts.at("ssh"), ' ');
  if (!contact.here && ssh.size() == 4) {
    contact.client = IsOfNetwork(ssh[0]) ? ssh[0] : "";
    contact.server = IsOfNetwork(ssh[2]) ? ssh[2] : "";
  }
  contact.has_said = true;
  if (--missing_facts_ > 0) return false;
  AskNameService();
  return true;
}

// Asks for the hosts that have no address from ssh.
void NetworkSurvey::AskNameService() {
  std::vector<std::string> names;
  std::vector<Contact*> contacts;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (contacts_[i].here || !contacts_[i].server.empty()) continue;
    names.push_back(hosts_[i].host);
    contacts.push_back(&contacts_[i]);
  }
  const std::vector<std::string> addresses = AddressesOfNames(names, kPatience);
  for (size_t i = 0; i < contacts.size(); ++i) contacts[i]->server = addresses[i];
}

json NetworkSurvey::PeersOf(size_t host) const {
  const std::vector<Interface>* own = nullptr;  // of this machine
  for (size_t i = 0; i < hosts_.size(); ++i)
    if (contacts_[i].here) own = &hosts_[i].interfaces;
  // If a jump host or an address translation is in between, ssh there saw another client address.
  const auto is_own = [&](const std::string& address) {
    return own != nullptr && std::any_of(own->begin(), own->end(), [&](const Interface& interface) {
             return interface.address == address;
           });
  };
  json peers = json::array();
  for (size_t i = 0; i < hosts_.size(); ++i) {
    std::string address = contacts_[i].here ? contacts_[host].client : contacts_[i].server;
    if (contacts_[i].here && !is_own(address)) address = SourceAddressTo(contacts_[host].server);
    peers.push_back(i == host ? "" : address);
  }
  return peers;
}

void NetworkSurvey::HearRoutes(size_t host, const json& routes) {
  Contact& contact = contacts_[host];
  if (missing_facts_ > 0 || missing_routes_ == 0 || contact.has_routed) return;
  auto sources = routes.get<std::vector<std::string>>();
  if (sources.size() != hosts_.size())
    throw LaunchError(
        ExitCode::kInternal, Text(
                                 hosts_[host].host, " has routes to ", sources.size(),
                                 " hosts; expected ", hosts_.size()));
  hosts_[host].sources = std::move(sources);
  contact.has_routed = true;
  --missing_routes_;
}

std::vector<HostNetworks> SurveyFromHere(
    const std::vector<std::string>& hosts, const std::vector<bool>& on_this_machine) {
  const std::vector<std::string> addresses = AddressesOfNames(hosts, kPatience);
  std::vector<HostNetworks> all = {{"this host", OwnInterfaces(), {}}};
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (on_this_machine[i]) continue;
    const std::string& address = addresses[i];
    all[0].sources.push_back(SourceAddressTo(address));
    all.push_back({hosts[i], {}, {address}});
    if (!address.empty()) all.back().interfaces.push_back({hosts[i], address, 32});
  }
  return all;
}

}  // namespace dtrun::launcher
