#include "launcher/hostfile.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
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

  // Nothing for a line without words.
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
  // "=" is a word of its own, with or without space around it.
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
    if (slots != 0) Refuse(name.column, Text(name.text, " once more"), "it once");
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
  std::map<std::string, std::string> places;  // of hosts that were read
  int64_t slots = 0;
  size_t number = 0;
  for (const std::string& line : base::Split(text.substr(begin), '\n')) {
    LineReader reader(name, ++number, line);
    const std::optional<Host> host = reader.ReadHost();
    if (!host) continue;
    const auto [earlier, is_new] = places.emplace(host->name, host->origin);
    if (!is_new)
      reader.Refuse(1, host->name + " again", "each host once; it stands at " + earlier->second);
    slots += std::max(host->slots, 1);
    if (slots > kMaxRanks) reader.Refuse(1, "more slots", Text("at most ", kMaxRanks));
    hosts.push_back(*host);
  }
  if (hosts.empty())
    throw UsageError(
        Text(name, ":", number, ":1: found the end, expected a host, such as node1 slots=4"));
  return hosts;
}

}  // namespace dtrun::launcher
