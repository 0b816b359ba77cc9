#ifndef DTRUN_LAUNCHER_RANK_INPUT_H_
#define DTRUN_LAUNCHER_RANK_INPUT_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/poller.h"

namespace dtrun::launcher {

/// The stdin of a rank's program, on its host: a pipe, and what it has not taken yet.
class RankInput {
 public:
  /// `on_taken` learns how many bytes are on their way out of here, and whether anybody may read
  /// more. Throws LaunchError kInternal.
  RankInput(Poller& poller, std::function<void(size_t bytes, bool open)> on_taken);
  ~RankInput();
  RankInput(const RankInput&) = delete;
  RankInput& operator=(const RankInput&) = delete;

  /// The end that the program reads. Closed by CloseReader, once the program has it: after that,
  /// its end is seen.
  int reader() const { return reader_; }
  void CloseReader();

  /// More for the program; none: its stdin ends after what is waiting.
  void Add(std::string_view bytes);

 private:
  void Update();
  void Write();
  void CloseWriter();

  Poller& poller_;
  std::function<void(size_t, bool)> on_taken_;
  int reader_ = -1, writer_ = -1;
  std::string queue_;
  bool at_end_ = false;
};

}  // namespace dtrun::launcher

#endif
