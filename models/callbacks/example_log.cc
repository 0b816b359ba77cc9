#include "models/callbacks/example_log.h"

#include <dtrun/objects.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "models/message_text.h"
#include "models/train/agreement.h"

namespace dtrun::models {
namespace {

// The problem of any rank, with the names of the ranks that have it; "": none has. Collective.
std::string ProblemOfAny(Run& run, const std::string& mine) {
  std::vector<Complaint> of_ranks;
  bool found = false;
  for (const std::string& text : AllGatherBytes(run.world(), mine)) {
    of_ranks.push_back({ErrorCode::kSystem, kResultNotWritten, text});
    found = found || !text.empty();
  }
  return found ? CombineComplaints(of_ranks).text : "";
}

}  // namespace

void ExampleLog::OnTrainBegin(Run& run) {
  run.Settle();
  path_ = Text(folder_, "/examples.", job_epoch_, ".", run.world().rank());
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  file_.reset(std::fopen(path_.c_str(), "ae"));
  problem_.clear();
  if (!file_) {
    const std::string why = error ? error.message() : std::string(std::strerror(errno));
    problem_ = Text(path_, ": cannot be written: ", why);
  }
  const std::string problem = ProblemOfAny(run, problem_);
  if (!problem.empty())
    throw AgreedError(ErrorCode::kSystem, kResultNotWritten, Text("ExampleLog: ", problem));
  // A line is one call of the system, so that a killed rank leaves whole lines.
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);
}

void ExampleLog::OnBatchBegin(Run& run) {
  if (!problem_.empty()) return;
  std::string line = Text(
      run.position.epoch, " ", run.position.step, " ", run.global_batch, " ", run.first_position);
  for (const uint64_t number : run.example_numbers) line += ' ' + std::to_string(number);
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size())
    problem_ = Text(path_, ": the log of examples ends early: ", std::strerror(errno));
}

void ExampleLog::OnTrainEnd(Run& run, const Logs&) {
  run.Settle();
  const std::string problem = ProblemOfAny(run, problem_);
  if (problem.empty()) return;
  run.NotWritten(problem);
  if (print_ && run.is_rank_0()) print_(problem);
}

}  // namespace dtrun::models
