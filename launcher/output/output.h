#ifndef DTRUN_LAUNCHER_OUTPUT_OUTPUT_H_
#define DTRUN_LAUNCHER_OUTPUT_OUTPUT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/launch_env.h"
#include "launcher/output/output_lines.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {

/// A line at the end of a terminal that is redrawn in place. Whoever writes to that terminal hides
/// it before, and shows it again after; a terminal that takes nothing just now is left alone.
class StatusLine {
 public:
  explicit StatusLine(int terminal) : terminal_(terminal) {}
  ~StatusLine() { Hide(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Replaces the text, which is cut to the terminal's width. "": none.
  void Set(const std::string& text);
  void Hide();
  /// `line_ended`: what was written last was a whole line.
  void Show(bool line_ended);

 private:
  void Draw();

  int terminal_;
  std::string text_;
  bool shown_ = false, may_show_ = true;
};

/// Where a stream of dtrun's own goes to, without ever blocking: what is not taken yet is kept.
/// After an error nothing more is written.
class Sink {
 public:
  /// `on_broken` is called once, when nobody reads any more.
  Sink(Poller& poller, int file, std::function<void()> on_broken);
  ~Sink();
  void Write(std::string_view text);
  size_t queued() const { return queue_.size(); }
  /// Nothing, or a whole line, was written last.
  bool line_ended() const { return line_ended_; }
  /// Why nothing more is written although somebody may read: "No space left on device"; "": it is.
  const std::string& error() const { return error_; }
  /// Kept out of the way of what is written, where this is a terminal.
  void SetStatusLine(StatusLine* line);
  /// Waits until all is taken.
  void Drain();

 private:
  void WriteSome();

  Poller& poller_;
  int file_;
  std::function<void()> on_broken_;
  std::string queue_;
  StatusLine* status_ = nullptr;
  bool line_ended_ = true;
  bool broken_ = false;
  std::string error_;
};

/// What the ranks write: on dtrun's own stdout and stderr in whole lines, and in files byte for
/// byte.
class Output {
 public:
  /// Makes the folder. Throws LaunchError kNoResult when that is not possible. `hosts` are those of
  /// the ranks.
  Output(
      Poller& poller, const OutputOptions& options, std::vector<base::HostSlots> hosts,
      std::function<void()> on_broken);
  ~Output();

  /// `stream` is 1 or 2.
  void Write(int rank, int stream, std::string_view bytes);
  void End(int rank, int stream);
  /// Shows whole lines that no rank wrote on stderr, between those of ranks.
  void WriteOthers(std::string_view lines);
  /// Shows lines that stay unfinished, and says once that stdout takes no more. Called now and then
  /// while `waiting()`, and after whatever wrote.
  void Expire();
  bool waiting() const { return out_.waiting() || err_.waiting(); }
  /// Shows `text` below all other output, where dtrun's stderr is a terminal; else false.
  bool SetStatus(const std::string& text);
  /// Says "dtrun: text" on stderr, between the lines of ranks; false when there is an unfinished
  /// one.
  bool Note(const std::string& text);

  /// So much waits to be taken that no more should be read.
  bool full() const;
  void Drain();

  /// The last lines that `rank` wrote to stderr; "" if none.
  std::string LastLines(int rank) const;
  /// They can still be seen: not many others have come after them.
  bool ShowsEndOf(int rank) const;
  /// What could not be kept in a file, "" if nothing: "rank 1's stdout could not be written ...".
  const std::string& file_error() const { return file_error_; }
  /// Which of dtrun's own streams could not be written, "" if none. What is said of stdout has been
  /// said when Drain returns.
  std::string stream_error() const;

 private:
  bool IsShown(int rank) const;
  bool IsRaw() const;
  OutputLines::Prefix PrefixOf(const char* stream) const;
  void Keep(int rank, int stream, std::string_view bytes);
  void SayStreamError();

  OutputOptions options_;
  std::vector<base::HostSlots> hosts_;
  OutputLines out_, err_;
  std::unique_ptr<StatusLine> status_;  // null: none was ever set
  Sink out_sink_, err_sink_;
  std::map<std::pair<int, int>, int> files_;  // by rank and stream
  std::map<int, std::string> tails_;          // of stderr, by rank
  long shown_lines_ = 0;                      // on stderr
  std::map<int, long> last_shown_;            // of them, by rank
  std::string file_error_;
  bool said_stream_error_ = false;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_OUTPUT_OUTPUT_H_
