#ifndef DTRUN_LAUNCHER_RANK_STREAMS_H_
#define DTRUN_LAUNCHER_RANK_STREAMS_H_

#include <functional>
#include <map>

#include "launcher/frame.h"
#include "launcher/poller.h"

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

}  // namespace dtrun::launcher

#endif
