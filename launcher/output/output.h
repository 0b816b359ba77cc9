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

/// A line at the end of a terminal that is redrawn in place. Before other text is written to that
/// terminal, call Hide; after it, call Show. If the terminal takes no output at the moment, the
/// line is not drawn.
class StatusLine {
 public:
  explicit StatusLine(int terminal) : terminal_(terminal) {}
  ~StatusLine() { Hide(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Replaces the text, which is cut to the terminal's width. "": no line.
  void Set(const std::string& text);
  void Hide();
  /// `line_ended`: the text written last ended a line.
  void Show(bool line_ended);

 private:
  void Draw();

  int terminal_;
  std::string text_;
  bool shown_ = false, may_show_ = true;
};

/// Writes text to dtrun's own stdout or stderr. Write never blocks: it queues text that the stream
/// does not take yet. After an error, all text is dropped.
class Sink {
 public:
  /// `on_broken` is called once, if the reader has closed the stream.
  Sink(Poller& poller, int file, std::function<void()> on_broken);
  ~Sink();
  void Write(std::string_view text);
  size_t queued() const { return queue_.size(); }
  /// Whether the last text ended a line; true before the first text.
  bool line_ended() const { return line_ended_; }
  /// The error that ended the writing: "No space left on device"; "": none, or the reader has
  /// closed the stream.
  const std::string& error() const { return error_; }
  /// Hides `line` while text is written, if the stream is a terminal.
  void SetStatusLine(StatusLine* line);
  /// Blocks until the stream has taken all text.
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

/// Writes the output of the ranks: in whole lines to dtrun's own stdout and stderr, and byte for
/// byte to files.
class Output {
 public:
  /// Makes the output folder. Throws LaunchError kNoResult if that fails. `hosts` are the hosts of
  /// the ranks.
  Output(
      Poller& poller, const OutputOptions& options, std::vector<base::HostSlots> hosts,
      std::function<void()> on_broken);
  ~Output();

  /// The hosts of the ranks from now on.
  void SetHosts(std::vector<base::HostSlots> hosts) { hosts_ = std::move(hosts); }

  /// `stream` is 1 or 2.
  void Write(int rank, int stream, std::string_view bytes);
  void End(int rank, int stream);
  /// Writes whole lines from other sources than the ranks to stderr, between the lines of the
  /// ranks.
  void WriteOthers(std::string_view lines);
  /// Shows lines that have been unfinished for a while. Reports once that stdout takes no more
  /// output. Call it regularly while `waiting()`, and after other writes.
  void Expire();
  bool waiting() const { return out_.waiting() || err_.waiting(); }
  /// Shows `text` below all other output. Returns false if dtrun's stderr is not a terminal.
  bool SetStatus(const std::string& text);
  /// Writes "dtrun: text" to stderr, between the lines of the ranks. Returns false if a line there
  /// is unfinished.
  bool Note(const std::string& text);

  /// Whether so much output is queued that the caller should stop reading from the ranks.
  bool full() const;
  void Drain();

  /// The last lines that `rank` wrote to stderr; "": none.
  std::string LastLines(int rank) const;
  /// Whether the user can still see these lines: few other lines came after them.
  bool ShowsEndOf(int rank) const;
  /// The error of the first output file that could not be written, "cannot write PATH: ..."; "":
  /// none. After it, no output file is written.
  const std::string& file_error() const { return file_error_; }
  /// The error of dtrun's stdout or stderr; "": none. Drain reports an error of stdout to the user.
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
  std::unique_ptr<StatusLine> status_;  // null before the first SetStatus
  Sink out_sink_, err_sink_;
  std::map<std::pair<int, int>, int> files_;  // by rank and stream
  std::map<int, std::string> tails_;          // the end of stderr, by rank
  long shown_lines_ = 0;                      // lines shown on stderr
  std::map<int, long> last_shown_;            // shown_lines_ after the rank's last output, by rank
  std::string file_error_;
  bool said_stream_error_ = false;
};

}  // namespace dtrun::launcher

#endif  // DTRUN_LAUNCHER_OUTPUT_OUTPUT_H_
