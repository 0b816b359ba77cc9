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

/// Makes one stream of lines out of what many ranks write, so that no line holds the text of two.
/// A line ends with '\n', or with '\r' as progress bars do. One that stays unfinished is shown
/// after a while; should another rank write then, it is broken off.
///
///   rank 0 "ab", rank 1 "x\n", rank 0 "c\n"  ->  "[1,1]<stdout>:x\n[1,0]<stdout>:abc\n"
class OutputLines {
 public:
  /// What stands in front of a line of `rank` that began at this time.
  using Prefix = std::function<std::string(int rank, OutputTime)>;
  explicit OutputLines(Prefix prefix) : prefix_(std::move(prefix)) {}

  /// Each returns what there is to show now.
  std::string Add(int rank, std::string_view bytes, OutputTime now);
  /// Of lines that have been unfinished for a while.
  std::string Expire(OutputTime now);
  /// `rank` writes no more.
  std::string End(int rank);

  /// A line waits to be finished or to expire.
  bool waiting() const { return !unfinished_.empty(); }

  static constexpr std::chrono::milliseconds kPatience{200};
  /// An unfinished line of so many bytes is shown at once, so that memory stays bounded.
  static constexpr size_t kLongest = 65536;

 private:
  struct Unfinished {
    std::string text;
    OutputTime since;
  };

  void Show(int rank, std::string_view text, OutputTime begun, std::string& shown);

  Prefix prefix_;
  std::map<int, Unfinished> unfinished_;
  std::optional<int> open_;     // the rank whose text, without a line's end, was shown last
  bool at_line_start_ = false;  // that text ended with '\r'
};

enum class Tag { kRank, kHost, kNone };

/// How the ranks' output is shown and kept.
struct OutputOptions {
  Tag tag = Tag::kRank;
  bool timestamps = false;
  std::vector<int> ranks = {};  ///< that are shown; empty: all
  std::string folder = {};      ///< of a file per rank and stream; "": none

  bool operator==(const OutputOptions&) const = default;
};

/// "rank", "host" or "none". Throws UsageError.
Tag ParseTag(const std::string& text);

/// Ranks of a job of `ranks`, in order: "0,3-5" -> {0, 3, 4, 5}. Throws UsageError that names the
/// item.
std::vector<int> ParseRankList(const std::string& text, int ranks);

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_OUTPUT_OUTPUT_LINES_H_
