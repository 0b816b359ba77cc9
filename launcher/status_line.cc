#include "launcher/status_line.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace dtrun::launcher {
namespace {

constexpr char kClear[] = "\r\x1b[K";

size_t ColumnsOf(int terminal) {
  winsize size = {};
  return ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80u;
}

bool Write(int terminal, const std::string& text) {
  pollfd ready = {terminal, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
  return write(terminal, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

void StatusLine::Set(const std::string& text) {
  text_ = text;
  if (may_show_) Draw();
}

void StatusLine::Hide() {
  if (shown_) Write(terminal_, kClear);
  shown_ = false;
}

void StatusLine::Show(bool line_ended) {
  may_show_ = line_ended;
  if (may_show_) Draw();
}

// One column less: the cursor would go to the next line.
void StatusLine::Draw() {
  if (text_.empty()) return Hide();
  shown_ |= Write(terminal_, kClear + text_.substr(0, ColumnsOf(terminal_) - 1));
}

}  // namespace dtrun::launcher
