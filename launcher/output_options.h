#ifndef DTRUN_LAUNCHER_OUTPUT_OPTIONS_H_
#define DTRUN_LAUNCHER_OUTPUT_OPTIONS_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

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

#endif
