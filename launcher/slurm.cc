#include "launcher/slurm.h"

#include <cctype>
#include <cstdint>
#include <optional>

#include "base/text.h"
#include "launcher/hosts.h"
#include "launcher/launch_error.h"
#include "launcher/quoting.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using Names = std::vector<std::string>;

constexpr char kNodes[] = "SLURM_JOB_NODELIST";
constexpr char kTasks[] = "SLURM_TASKS_PER_NODE";

// Reads from left to right and knows the column of what it refuses.
class Reader {
 public:
  Reader(const char* variable, const std::string& text) : variable_(variable), text_(text) {}

  bool AtEnd() const { return at_ == text_.size(); }
  bool Takes(char c) {
    if (AtEnd() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Takes(c)) Refuse(Text("'", c, "'"));
  }
  template <typename Predicate>
  std::string TakeWhile(Predicate predicate) {
    const size_t begin = at_;
    while (!AtEnd() && predicate(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string Digits() {
    const std::string digits = TakeWhile([](unsigned char c) { return std::isdigit(c) != 0; });
    if (digits.empty() || digits.size() > 9) Refuse("a number");
    return digits;
  }
  [[noreturn]] void Refuse(const std::string& expected) const {
    throw UsageError(
        Text(variable_, ' ', Excerpt(text_), ": expected ", expected, " at column ", at_ + 1));
  }

 private:
  const char* variable_;
  const std::string& text_;
  size_t at_ = 0;
};

int64_t NumberOf(const std::string& digits) { return base::ParseInteger(digits).value_or(0); }

// "08" to "10" are 08, 09, 10.
void AppendRange(Reader& reader, Names& numbers) {
  const std::string first = reader.Digits();
  const std::string last = reader.Takes('-') ? reader.Digits() : first;
  if (NumberOf(last) < NumberOf(first)) reader.Refuse("a range that goes up");
  if (NumberOf(last) - NumberOf(first) + static_cast<int64_t>(numbers.size()) >= kMaxRanks)
    reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  for (int64_t number = NumberOf(first); number <= NumberOf(last); ++number) {
    const std::string digits = Text(number);
    const size_t zeros = first.size() > digits.size() ? first.size() - digits.size() : 0;
    numbers.push_back(std::string(zeros, '0') + digits);
  }
}

Names ReadBracket(Reader& reader) {
  Names numbers;
  do AppendRange(reader, numbers);
  while (reader.Takes(','));
  reader.Expect(']');
  return numbers;
}

Names Product(const Reader& reader, const Names& names, const Names& endings) {
  if (names.size() * endings.size() > kMaxRanks)
    reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  Names product;
  for (const std::string& name : names)
    for (const std::string& ending : endings) product.push_back(name + ending);
  return product;
}

// "r[1-2]n[1-4]-ib": text and brackets in turn.
Names ReadItem(Reader& reader) {
  Names names = {reader.TakeWhile(
      [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; })};
  while (reader.Takes('[')) {
    names = Product(reader, names, ReadBracket(reader));
    const std::string text = reader.TakeWhile(
        [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; });
    for (std::string& name : names) name += text;
  }
  if (RefusalOfHost(names.front())) reader.Refuse("the name of a node");
  return names;
}

}  // namespace

std::vector<std::string> ExpandNodeList(const std::string& text) {
  Reader reader(kNodes, text);
  Names nodes;
  do {
    const Names more = ReadItem(reader);
    nodes.insert(nodes.end(), more.begin(), more.end());
    if (nodes.size() > kMaxRanks) reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
  } while (reader.Takes(','));
  if (!reader.AtEnd()) reader.Refuse("',' or the end");
  return nodes;
}

std::vector<int> ExpandTaskCounts(const std::string& text) {
  Reader reader(kTasks, text);
  std::vector<int> counts;
  do {
    const std::optional<int> tasks = ParseSlots(reader.Digits());
    if (!tasks) reader.Refuse(Text("a number from 1 to ", kMaxRanks, " before it"));
    int64_t times = 1;
    if (reader.Takes('(')) {
      reader.Expect('x');
      times = NumberOf(reader.Digits());
      reader.Expect(')');
    }
    if (times > kMaxRanks - static_cast<int64_t>(counts.size()))
      reader.Refuse(Text("at most ", kMaxRanks, " nodes"));
    counts.insert(counts.end(), static_cast<size_t>(times), *tasks);
  } while (reader.Takes(','));
  if (!reader.AtEnd()) reader.Refuse("',', '(xN)' or the end");
  return counts;
}

std::vector<Host> SlurmHosts(const std::string& node_list, const std::string& tasks_per_node) {
  const Names nodes = ExpandNodeList(node_list);
  const std::vector<int> tasks =
      tasks_per_node.empty() ? std::vector<int>(nodes.size(), 0) : ExpandTaskCounts(tasks_per_node);
  if (tasks.size() != nodes.size())
    throw UsageError(Text(
        kTasks, ' ', Excerpt(tasks_per_node), " is for ", tasks.size(), " nodes, but ", kNodes, ' ',
        Excerpt(node_list), " has ", nodes.size()));
  std::vector<Host> hosts;
  int64_t slots = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    hosts.push_back({nodes[i], tasks[i], 0, kNodes});
    slots += tasks[i];
  }
  if (slots > kMaxRanks) throw UsageError(Text(kTasks, " has more than ", kMaxRanks, " tasks"));
  return hosts;
}

}  // namespace dtrun::launcher
