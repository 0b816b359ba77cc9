// ParseHosts and ParseHostfile read hosts and know the column of an error. PlaceRanks fills the
// slots of the hosts in order; DealOut then gives the remaining ranks to the hosts in turn.

#include "launcher/hosts/hosts.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "launcher/support/launch_error.h"
#include "launcher/support/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;

constexpr size_t kMaxHostLength = 253;  // of a DNS name, RFC 1035

[[noreturn]] void Refuse(const std::string& item, size_t column, const std::string& why) {
  throw UsageError(Text("item ", Excerpt(item), " (column ", column, "): ", why));
}

bool AllOf(const std::string& text, const char* punctuation) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           (c != '\0' && std::strchr(punctuation, c) != nullptr);
  });
}

bool IsBracketedIpv6(const std::string& name) {
  if (name.size() < 4 || name.front() != '[' || name.back() != ']') return false;
  const std::string address = name.substr(1, name.size() - 2);
  return address.find(':') != std::string::npos &&
         address.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
}

bool IsHostName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxHostLength && name.front() != '-' &&
         AllOf(name, "._-");
}

Host ParseHost(const std::string& item, size_t column) {
  // The colons of an IPv6 address come before its closing bracket.
  const size_t colon = item.find(':', item.starts_with('[') ? item.find(']') : 0);
  Host host = {item.substr(0, colon)};
  if (item.empty()) Refuse(item, column, "a host is missing");
  if (const auto refusal = RefusalOfHost(host.name)) Refuse(item, column, *refusal);
  if (colon == std::string::npos) return host;
  const std::string text = item.substr(colon + 1);
  const std::optional<int> slots = ParseSlots(text);
  if (!slots)
    Refuse(
        item, column,
        Text("expected a number of slots from 1 to ", kMaxRanks, ", got ", Excerpt(text)));
  host.slots = *slots;
  return host;
}

std::string Counted(int64_t count, const char* what) {
  return Text(count, ' ', what, count == 1 ? "" : "s");
}

[[noreturn]] void RefuseTooFewSlots(const std::vector<Host>& hosts, int ranks, bool oversubscribe) {
  std::vector<HostSlots> list;
  for (const Host& host : hosts)
    list.push_back({host.name, oversubscribe ? host.max_slots : host.slots});
  const int64_t slots = base::RankCount(list);
  std::string shown = HostList(list);
  if (shown.size() > 200) shown = Text(list.size(), " hosts");
  throw UsageError(Text(
      "requested ", Counted(ranks, "rank"), ", but the host list has ", Counted(slots, "slot"),
      oversubscribe ? " at most" : "", " (", shown, ")",
      oversubscribe ? "" : "; --oversubscribe lets ranks share slots"));
}

// Gives one rank to each host in turn, up to max_slots. Returns the number of ranks without a
// place.
int DealOut(const std::vector<Host>& hosts, int ranks, std::vector<HostSlots>& placement) {
  for (bool placed = true; placed && ranks > 0;) {
    placed = false;
    for (size_t i = 0; i < hosts.size() && ranks > 0; ++i) {
      if (hosts[i].max_slots > 0 && placement[i].slots >= hosts[i].max_slots) continue;
      ++placement[i].slots;
      --ranks;
      placed = true;
    }
  }
  return ranks;
}

}  // namespace

std::optional<std::string> RefusalOfHost(const std::string& name) {
  if (name.starts_with('['))
    return IsBracketedIpv6(name) ? std::nullopt
                                 : std::optional<std::string>(
                                       "expected an IPv6 address in brackets, such as [::1]:2");
  if (IsHostName(name)) return std::nullopt;
  return "expected host:slots with a host of letters, digits, '.', '_' and '-' that does not begin "
         "with '-'";
}

std::optional<int> ParseSlots(const std::string& text) {
  const std::optional<int64_t> count = base::ParseInteger(text);
  if (!count || *count < 1 || *count > kMaxRanks) return std::nullopt;
  return static_cast<int>(*count);
}

std::vector<Host> ParseHosts(const std::string& text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  int64_t slots = 0;
  size_t column = 1;
  for (const std::string& item : base::Split(text, ',')) {
    hosts.push_back(ParseHost(item, column));
    if (!names.insert(hosts.back().name).second)
      Refuse(item, column, "found this host twice, expected each host once");
    slots += std::max(hosts.back().slots, 1);
    if (slots > kMaxRanks)
      Refuse(item, column, Text("found ", slots, " slots, expected at most ", kMaxRanks));
    column += item.size() + 1;
  }
  return hosts;
}

std::vector<HostSlots> PlaceRanks(const std::vector<Host>& hosts, int ranks, bool oversubscribe) {
  std::vector<HostSlots> placement;
  int left = ranks;
  for (const Host& host : hosts) {
    placement.push_back({host.name, std::min(host.slots, left)});
    left -= placement.back().slots;
  }
  if (oversubscribe) left = DealOut(hosts, left, placement);
  if (left > 0) RefuseTooFewSlots(hosts, ranks, oversubscribe);
  std::erase_if(placement, [](const HostSlots& host) { return host.slots == 0; });
  return placement;
}

int64_t SlotCount(const std::vector<Host>& hosts) {
  int64_t slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  return slots;
}

std::string HostList(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> items;
  for (const HostSlots& host : hosts) items.push_back(Text(host.name, ':', host.slots));
  return base::Join(items, ",");
}

bool IsThisMachine(const std::string& name, const std::string& own_name) {
  const bool begins_own_name = own_name.starts_with(name) && own_name[name.size()] == '.';
  return name == "localhost" || name == "[::1]" || name.starts_with("127.") || name == own_name ||
         begins_own_name;
}

namespace {

using base::Text;

constexpr size_t kMaxLine = 4096;
constexpr char kByteOrderMark[] = "\xef\xbb\xbf";
constexpr char kSpace[] = " \t\r\v\f";

struct Word {
  std::string text;
  size_t column;  // from 1
};

class LineReader {
 public:
  LineReader(const std::string& file, size_t number, const std::string& line)
      : place_(Text(file, ':', number)) {
    if (line.size() > kMaxLine)
      Refuse(
          kMaxLine + 1, Text("a line of ", line.size(), " characters"), Text("at most ", kMaxLine));
    Divide(line);
  }

  // nullopt for a line without words.
  std::optional<Host> ReadHost() {
    if (words_.empty()) return std::nullopt;
    Host host = HostOf(words_[0]);
    host.origin = place_;
    for (next_ = 1; next_ < words_.size();) ReadAttribute(host);
    if (host.max_slots > 0 && host.slots > host.max_slots)
      Refuse(
          words_[0].column, Text("slots=", host.slots, " with max_slots=", host.max_slots),
          "no more slots than max_slots");
    return host;
  }

  [[noreturn]] void Refuse(
      size_t column, const std::string& found, const std::string& expected) const {
    throw UsageError(Text(place_, ':', column, ": found ", found, ", expected ", expected));
  }

 private:
  // "=" is a separate word, with or without space around it.
  void Divide(const std::string& line) {
    const std::string code = line.substr(0, line.find('#'));
    for (size_t i = code.find_first_not_of(kSpace); i < code.size();
         i = code.find_first_not_of(kSpace, i)) {
      const size_t end =
          code[i] == '=' ? i + 1
                         : std::min(code.find_first_of(std::string(kSpace) + "=", i), code.size());
      words_.push_back({code.substr(i, end - i), i + 1});
      i = end;
    }
  }

  Host HostOf(const Word& word) const {
    const size_t colon = word.text.find(':', word.text.starts_with('[') ? word.text.find(']') : 0);
    Host host = {word.text.substr(0, colon)};
    if (const auto refusal = RefusalOfHost(host.name))
      Refuse(
          word.column, Excerpt(word.text),
          "a host of letters, digits, '.', '_' and '-' or an IPv6 address in brackets");
    if (colon != std::string::npos)
      host.slots = SlotsOf({word.text.substr(colon + 1), word.column + colon + 1});
    return host;
  }

  int SlotsOf(const Word& word) const {
    const std::optional<int> slots = ParseSlots(word.text);
    if (!slots)
      Refuse(word.column, Excerpt(word.text), Text("a number of slots from 1 to ", kMaxRanks));
    return *slots;
  }

  void ReadAttribute(Host& host) {
    const Word name = words_[next_];
    const bool is_most = name.text == "max_slots" || name.text == "max-slots";
    if (name.text != "slots" && !is_most)
      Refuse(name.column, Excerpt(name.text), "slots=N or max_slots=N");
    const size_t end = name.column + name.text.size();
    if (next_ + 1 >= words_.size() || words_[next_ + 1].text != "=")
      Refuse(end, "no '='", Text(name.text, "=N"));
    if (next_ + 2 >= words_.size())
      Refuse(end + 1, "nothing", Text("a number of slots from 1 to ", kMaxRanks));
    int& slots = is_most ? host.max_slots : host.slots;
    if (slots != 0) Refuse(name.column, Text(name.text, " twice"), Text(name.text, " once"));
    slots = SlotsOf(words_[next_ + 2]);
    next_ += 3;
  }

  std::string place_;
  std::vector<Word> words_;
  size_t next_ = 0;
};

}  // namespace

std::vector<Host> ParseHostfile(const std::string& name, const std::string& text) {
  const size_t begin = text.starts_with(kByteOrderMark) ? sizeof kByteOrderMark - 1 : 0;
  std::vector<Host> hosts;
  std::map<std::string, std::string> places;  // origins of the hosts, by name
  int64_t slots = 0;
  size_t number = 0;
  for (const std::string& line : base::Split(text.substr(begin), '\n')) {
    LineReader reader(name, ++number, line);
    const std::optional<Host> host = reader.ReadHost();
    if (!host) continue;
    const auto [earlier, is_new] = places.emplace(host->name, host->origin);
    if (!is_new)
      reader.Refuse(1, host->name + " again", "each host once; the first is at " + earlier->second);
    slots += std::max(host->slots, 1);
    if (slots > kMaxRanks) reader.Refuse(1, Text(slots, " slots"), Text("at most ", kMaxRanks));
    hosts.push_back(*host);
  }
  if (hosts.empty())
    throw UsageError(
        Text(name, ":", number, ":1: found the end, expected a host, such as node1 slots=4"));
  return hosts;
}

}  // namespace dtrun::launcher
