#include "launcher/rank_output.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "launcher/launch_error.h"

namespace dtrun::launcher {

OutputPipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError(
        ExitCode::kInternal, base::Text("cannot make a pipe: ", std::strerror(errno)));
  return {ends[0], ends[1]};
}

OutputPipe MakeTerminal(int columns) {
  winsize size = {};
  size.ws_col = static_cast<unsigned short>(columns > 0 ? columns : 80);
  size.ws_row = 24;
  OutputPipe terminal;
  if (openpty(&terminal.read, &terminal.write, nullptr, nullptr, &size) != 0) return MakePipe();
  termios mode = {};
  tcgetattr(terminal.write, &mode);
  cfmakeraw(&mode);
  tcsetattr(terminal.write, TCSANOW, &mode);
  fcntl(terminal.read, F_SETFD, FD_CLOEXEC);
  fcntl(terminal.write, F_SETFD, FD_CLOEXEC);
  return terminal;
}

}  // namespace dtrun::launcher
