// The library writes a note while a rank is in Init, and renames the note when the rank has joined.
// The note names the process. /proc shows the state of that process.

#include "launcher/agent/rank_view.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/launch_env.h"
#include "launcher/protocol/exit_record.h"

namespace dtrun::launcher {

RankView::RankView(const std::string& folder, int rank, pid_t wrapper)
    : note_(ShutdownNote(folder, rank)), wrapper_(wrapper) {}

// The note names the process that calls Init. If the program is a script, the wrapper's child is
// only its shell.
bool RankView::ReadNote(const std::string& file) {
  std::istringstream note(ReadFileOfSystem(file).value_or(""));
  pid_t process = -1;
  int timeout_s = 0, warning_s = 0, epoch = 0;
  if (!(note >> process >> timeout_s >> warning_s >> epoch)) return false;
  process_ = process;
  timeout_s_ = timeout_s;
  warning_s_ = warning_s;
  epoch_ = epoch;
  return true;
}

std::optional<std::string> RankView::Look() {
  stopped_wrapper_.Look(wrapper_);
  in_init_ = ReadNote(base::InitNote(note_));
  const bool has_joined = !in_init_ && ReadNote(base::JoinedNote(note_));
  joined_ = joined_ || has_joined;
  // A process that is killed while it is stopped counts as stopped to its end.
  const std::optional<ProcessView> process = ViewProcess(process_);
  if (process && process->running()) stopped_ = process->stopped();
  const nlohmann::json body = {{"init", in_init_},        {"joined", joined_},
                               {"epoch", epoch_},         {"stopped", stopped_},
                               {"timeout_s", timeout_s_}, {"warning_s", warning_s_}};
  std::string text = body.dump();
  if (text == told_) return std::nullopt;
  told_ = text;
  return text;
}

}  // namespace dtrun::launcher
