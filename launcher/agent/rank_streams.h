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

/// The output of the ranks of one host: the read ends of their stdout and stderr.
class RankStreams {
 public:
  /// `send` gets kOutput frames.
  RankStreams(Poller& poller, std::function<void(Frame frame)> send);
  ~RankStreams();
  RankStreams(const RankStreams&) = delete;
  RankStreams& operator=(const RankStreams&) = delete;

  /// Takes ownership of `file`, the read end of stream `number` (1 or 2) of `rank`.
  void Adopt(int file, int rank, int number);
  /// While paused, the agent reads nothing, so the ranks have to wait.
  void SetPaused(bool paused);
  /// Whether all streams have ended.
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

/// The stdin of a rank's program: a pipe, and a queue of the bytes that the pipe has not taken yet.
class RankInput {
 public:
  /// `on_taken` gets the number of bytes that have left the queue, and whether the program can read
  /// more. Throws LaunchError kInternal.
  RankInput(Poller& poller, std::function<void(size_t bytes, bool open)> on_taken);
  ~RankInput();
  RankInput(const RankInput&) = delete;
  RankInput& operator=(const RankInput&) = delete;

  /// The read end, for the program. Call CloseReader once the program has it: only then does
  /// RankInput notice that the program has closed its stdin.
  int reader() const { return reader_; }
  void CloseReader();

  /// Queues bytes for the program. Empty bytes end the stdin after the queue.
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
