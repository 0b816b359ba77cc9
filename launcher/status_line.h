#ifndef DTRUN_LAUNCHER_STATUS_LINE_H_
#define DTRUN_LAUNCHER_STATUS_LINE_H_

#include <string>

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

}  // namespace dtrun::launcher

#endif
