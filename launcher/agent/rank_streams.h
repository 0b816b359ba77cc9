#ifndef DTRUN_LAUNCHER_AGENT_RANK_STREAMS_H_
#define DTRUN_LAUNCHER_AGENT_RANK_STREAMS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "launcher/protocol/frame.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// What the ranks of one host write: the read ends of their stdout and stderr.
class RankStreams {
 public:
  /// `send` gets frames of kind kOutput.
  RankStreams(Poller& poller, std::function<void(Frame frame)> send);
  ~RankStreams();
  RankStreams(const RankStreams&) = delete;
  RankStreams& operator=(const RankStreams&) = delete;

  /// Takes over `file`, to which the program of `rank` writes its stream `number`, 1 or 2.
  void Adopt(int file, int rank, int number);
  /// While paused, nothing is read, so that the ranks have to wait.
  void SetPaused(bool paused);
  /// All have come to their end.
  bool empty() const { return streams_.empty(); }

 private:
  struct Stream {
    int rank, number;
  };

  void Pass(int file);

  Poller& poller_;
  std::function<void(Frame)> send_;
  std::map<int, Stream> streams_;  // by descriptor
  bool paused_ = false;
};

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

#endif  // DTRUN_LAUNCHER_AGENT_RANK_STREAMS_H_
