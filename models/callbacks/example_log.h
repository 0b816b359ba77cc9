#ifndef DTRUN_MODELS_CALLBACKS_EXAMPLE_LOG_H_
#define DTRUN_MODELS_CALLBACKS_EXAMPLE_LOG_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "models/callbacks/callback.h"
#include "models/callbacks/log_values.h"

namespace dtrun::models {

/// Writes the number of every example to files, step by step, so that a reader can check that a job
/// with lost ranks used each example once. Before each step, each rank adds a line to
/// FOLDER/examples.E.R, where E is the epoch of the job (Context::losses) and R the rank. The line
/// has the epoch of the training, the step, the examples of all ranks in the step, the position of
/// this rank's first example among them, and the number of each of its examples in the data set. A
/// step can be in files of several E. The largest E counts: the gradients of the others were
/// discarded. If a file cannot be written, training continues: see Run::NotWritten.
class ExampleLog : public Callback {
 public:
  /// `job_epoch` is E.
  ExampleLog(std::string folder, uint32_t job_epoch, Print print = {})
      : folder_(std::move(folder)), job_epoch_(job_epoch), print_(std::move(print)) {}

  std::string name() const override { return "ExampleLog"; }
  /// Makes the folder and the file. Throws AgreedError if a rank cannot.
  void OnTrainBegin(Run& run) override;
  void OnBatchBegin(Run& run) override;
  void OnTrainEnd(Run& run, const Logs& logs) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string folder_, path_;
  uint32_t job_epoch_;
  Print print_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string problem_;  // of this rank; "": none
};

}  // namespace dtrun::models

#endif  // DTRUN_MODELS_CALLBACKS_EXAMPLE_LOG_H_
