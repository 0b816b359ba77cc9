#include "models/callbacks/tensorboard.h"

#include <dtrun/error.h>
#include <dtrun/objects.h>

#include <utility>

#include "models/formats/tensorboard/summary_writer.h"

namespace dtrun::models {

TensorBoard::TensorBoard(TensorBoardOptions options) : options_(std::move(options)) {
  if (options_.log_dir.empty())
    throw Error(ErrorCode::kInvalidArgument, "TensorBoard: log_dir is '', expected a folder");
}

// After OnTrainEnd, there is no session.
TensorBoard::~TensorBoard() {
  if (session_ != nullptr && !options_.hparams.empty())
    session_->EndSession(SessionStatus::kFailure);
}

SummaryWriter& TensorBoard::In(std::unique_ptr<SummaryWriter>& writer, const std::string& folder) {
  if (writer == nullptr) writer = std::make_unique<SummaryWriter>(options_.log_dir + "/" + folder);
  return *writer;
}

void TensorBoard::OnTrainBegin(Run& run) {
  if (!run.is_rank_0()) return;
  if (!options_.hparams.empty()) {
    for (const Metric* metric : run.metrics())
      for (const char* prefix : {"", "val_"}) session_logs_.push_back(prefix + metric->name());
    std::vector<std::string> tags;
    for (const std::string& name : session_logs_) tags.push_back("hparam/" + name);
    In(session_, "").BeginSession(options_.hparams, tags);
  }
  // Markdown shows indented lines as they are.
  if (!options_.command.empty()) In(session_, "").Text("command", "    " + options_.command, 0);
  if (!options_.write_graph) return;
  In(train_, "train").Graph(GraphOf(run.model().input_shape(), run.model().layers()));
}

void TensorBoard::OnBatchEnd(Run& run, const Logs& logs) {
  if (!run.is_rank_0() || options_.update_every_batches == 0) return;
  if (run.position.step % options_.update_every_batches != 0) return;
  for (const auto& [name, value] : logs)
    In(train_, "train").Scalar("batch_" + name, value, static_cast<int64_t>(run.position.step));
}

void TensorBoard::OnTestEnd(Run& run, const Logs& logs) {
  if (!run.is_rank_0()) return;
  const auto step = static_cast<int64_t>(run.replica().step());
  for (const auto& [name, value] : logs)
    In(validation_, "validation").Scalar("evaluation_" + name + "_vs_iterations", value, step);
}

void TensorBoard::OnEpochEnd(Run& run, Logs& logs) {
  if (!run.is_rank_0()) return;
  const auto epoch = static_cast<int64_t>(run.position.epoch) - 1;
  for (const auto& [name, value] : logs) {
    const bool validates = name.rfind("val_", 0) == 0;
    SummaryWriter& writer = validates ? In(validation_, "validation") : In(train_, "train");
    writer.Scalar("epoch_" + (validates ? name.substr(4) : name), value, epoch);
  }
  for (const std::string& name : session_logs_)
    if (logs.contains(name)) session_->Scalar("hparam/" + name, logs[name], epoch);
  const uint64_t every = options_.histogram_every_epochs;
  if (every > 0 && run.position.epoch % every == 0) {
    std::vector<NamedBuffer> weights = run.model().BorrowWeights();
    weights.resize(run.model().parameters().size());  // without the network's buffers
    for (const NamedBuffer& parameter : weights) {
      const auto* values = static_cast<const float*>(parameter.buffer.data);
      In(train_, "train")
          .Histogram(parameter.name + "/histogram", {values, parameter.buffer.count}, epoch);
    }
  }
  Flush();
}

void TensorBoard::Flush() {
  for (SummaryWriter* writer : {session_.get(), train_.get(), validation_.get()}) {
    try {
      if (writer != nullptr) writer->Flush();
    } catch (const Error& error) {
      if (problem_.empty()) problem_ = error.what();
    }
  }
}

// All ranks must report the same failed write.
void TensorBoard::OnTrainEnd(Run& run, const Logs&) {
  if (session_ != nullptr && !options_.hparams.empty())
    session_->EndSession(SessionStatus::kSuccess);
  Flush();
  session_.reset();
  train_.reset();
  validation_.reset();
  run.Settle();
  const std::string problem = BroadcastBytes(run.world(), std::exchange(problem_, {}));
  if (!problem.empty()) run.NotWritten("TensorBoard: " + problem);
}

}  // namespace dtrun::models
