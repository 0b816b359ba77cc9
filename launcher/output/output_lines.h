#ifndef DTRUN_LAUNCHER_OUTPUT_OUTPUT_LINES_H_
#define DTRUN_LAUNCHER_OUTPUT_OUTPUT_LINES_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::launcher {

using OutputTime = std::chrono::system_clock::time_point;

/// Merges the output of many ranks into one stream of lines. No line holds text of two ranks. A
/// line ends with '\n', or with '\r' as in progress bars. An unfinished line is shown after
/// kPatience. If another rank writes next, the unfinished line ends there.
///
///   rank 0 "ab", rank 1 "x\n", rank 0 "c\n"  ->  "[1,1]<stdout>:x\n[1,0]<stdout>:abc\n"
class OutputLines {
 public:
  /// Returns the prefix of a line of `rank` that began at this time.
  using Prefix = std::function<std::string(int rank, OutputTime)>;
  explicit OutputLines(Prefix prefix) : prefix_(std::move(prefix)) {}

  /// Adds output of `rank`. Add, Expire and End return the text to show now.
  std::string Add(int rank, std::string_view bytes, OutputTime now);
  /// Shows the lines that have been unfinished for kPatience.
  std::string Expire(OutputTime now);
  /// Shows the unfinished line of `rank`, which writes no more.
  std::string End(int rank);

  /// Whether a line is unfinished and not shown yet.
  bool waiting() const { return !unfinished_.empty(); }

  static constexpr std::chrono::milliseconds kPatience{200};
  /// An unfinished line of this many bytes is shown at once, to bound the memory.
  static constexpr size_t kLongest = 65536;

 private:
  struct Unfinished {
    std::string text;
    OutputTime since;
  };

  void Show(int rank, std::string_view text, OutputTime begun, std::string& shown);

  Prefix prefix_;
  std::map<int, Unfinished> unfinished_;
  std::optional<int> open_;     // the rank of the text shown last, if that text has no line end
  bool at_line_start_ = false;  // that text ended with '\r'
};

enum class Tag { kRank, kHost, kNone };

/// How the output of the ranks is shown and stored.
struct OutputOptions {
  Tag tag = Tag::kRank;
  bool timestamps = false;
  std::vector<int> ranks = {};  ///< ranks to show; empty: all
  std::string folder = {};      ///< for one file per rank and stream; "": none

  bool operator==(const OutputOptions&) const = default;
};

/// "rank", "host" or "none". Throws UsageError.
Tag ParseTag(const std::string& text);

/// The ranks in a list, in order: "0,3-5" -> {0, 3, 4, 5}. `ranks` is the number of ranks of the
/// job. Throws UsageError that names the item.
std::vector<int> ParseRankList(const std::string& text, int ranks);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_OUTPUT_OUTPUT_LINES_H_
