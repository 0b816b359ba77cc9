// Save and Load first compare the arguments of all ranks. If they differ, all ranks throw before a
// file is written or read. Then rank 0 does the file operations; in a sharded save, each rank
// writes its own file. The call ends with the same result on all ranks. A background save does the
// same work on a thread, and the next call reports its result.

#include "runtime/checkpoint/checkpoint_manager.h"

#include <pthread.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/job/rank_agreement.h"

namespace dtrun::runtime {
namespace {

using base::Text;

std::vector<std::string> Lines(std::string first, const std::vector<Tensor>& tensors) {
  std::vector<std::string> lines = {std::move(first)};
  for (const Tensor& tensor : tensors)
    lines.push_back(Text('\'', tensor.name, "' ", Describe(tensor.buffer.dtype, tensor.shape)));
  return lines;
}

std::string Told(const CheckpointManagerOptions& options) {
  return Text(
      "max_to_keep=", options.retention.max_to_keep,
      " best=", static_cast<int32_t>(options.retention.best), " sharded=", options.sharded,
      " read_only=", options.read_only);
}

std::string Told(const SaveRequest& request, CheckpointManager::Mode mode) {
  return Text(
      "name='", request.name, "' step=", request.step,
      " value=", request.value ? Text(*request.value) : "none",
      " asynchronous=", mode == CheckpointManager::Mode::kInBackground);
}

std::string Told(const Wanted& wanted) {
  return Text(
      "name='", wanted.name, "' best=", wanted.best, " allow_unexpected=", wanted.allow_unexpected);
}

void CheckRequest(const SaveRequest& request) {
  CheckCheckpointName(request.name);
  CheckMetadata(request.metadata);
  if (request.value && !std::isfinite(*request.value))
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         "the value of checkpoint '", request.name, "' is ",
                                         *request.value, "; expected a finite number"));
}

}  // namespace

CheckpointManager::CheckpointManager(
    ops::Communicator& communicator, const std::string& folder,
    const CheckpointManagerOptions& options, const base::LogSink* log)
    : communicator_(communicator.Duplicate()), path_(folder), options_(options), log_(log) {
  Agree(
      *communicator_, {.owner = "the checkpoint manager",
                       .items = "options",
                       .item = "",
                       .lines = {Told(options)}});
  if (options_.sharded) background_communicator_ = communicator.Duplicate();
  OnRootForAll(*communicator_, [&] {
    OpenFolder();
    return std::string();
  });
  if (options_.sharded && !options_.read_only) CheckFolderIsShared();
}

void CheckpointManager::OpenFolder() {
  if (path_.empty())
    throw Error(ErrorCode::kInvalidArgument, "the checkpoint folder has no name; expected a path");
  folder_.emplace(
      options_.read_only ? CheckpointFolder::OpenForReading(path_, options_.retention)
                         : CheckpointFolder::OpenForWriting(path_, options_.retention));
}

void CheckpointManager::CheckFolderIsShared() {
  OnAllForAll(*communicator_, [&] {
    if (KindOf(path_ + "/.lock") != PathKind::kFile)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "checkpoint folder '", path_,
              "' is not the folder of rank 0; expected a folder that all "
              "ranks share, because the checkpoints are sharded"));
    return std::string();
  });
}

SaveJob CheckpointManager::JobOf(
    const SaveRequest& request, const std::vector<Tensor>& tensors) const {
  SaveJob job{
      .request = request,
      .ranks = static_cast<uint64_t>(communicator_->size()),
      .tensors = tensors,
      .plan = PlanPieces(tensors, options_.sharded ? communicator_->size() : 1)};
  if (Writes())
    for (const TensorPiece& piece : job.plan[static_cast<size_t>(communicator_->rank())])
      job.pieces.push_back(TensorOf(tensors[piece.tensor], piece));
  return job;
}

void CheckpointManager::Save(
    const SaveRequest& request, const std::vector<Tensor>& tensors, Mode mode) {
  Wait();
  SaveJob job;
  OnAllForAll(*communicator_, [&] {
    if (options_.read_only)
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "checkpoint folder '", path_,
              "' was opened read-only; open the folder without read_only to save"));
    CheckRequest(request);
    CheckTensors(tensors);
    job = JobOf(request, tensors);
    if (mode == Mode::kInBackground && Writes()) {
      snapshot_.Reserve(job.pieces);
      if (task_ == nullptr) task_ = std::make_unique<BackgroundTask>();
    }
    return std::string();
  });
  Agree(
      *communicator_, {.owner = "the checkpoint",
                       .items = "tensors to save",
                       .item = "tensor",
                       .lines = Lines(Told(request, mode), tensors)});
  if (mode == Mode::kNow) {
    if (options_.sharded) {
      WriteShard(*communicator_, job);
    } else {
      OnRootForAll(*communicator_, [&] {
        WriteAll(job);
        return std::string();
      });
    }
    return;
  }
  under_way_ = true;
  if (!Writes()) return;
  job.pieces = snapshot_.Copy(job.pieces);
  task_->Start([this, job = std::move(job)] {
    if (options_.sharded) {
      WriteShard(*background_communicator_, job);
    } else {
      WriteAll(job);
    }
  });
}

void CheckpointManager::WriteAll(const SaveJob& job) {
  WriteAlone(*folder_, job);
  Prune();
}

void CheckpointManager::WriteShard(ops::Communicator& communicator, const SaveJob& job) {
  WriteTogether(communicator, folder_ ? &*folder_ : nullptr, path_, job);
  if (folder_) Prune();
}

// The new checkpoint is complete, so a failure to remove an old one is only a warning.
void CheckpointManager::Prune() {
  const std::string kept = folder_->Prune();
  if (!kept.empty() && log_ != nullptr)
    (*log_)(base::LogLevel::kWarning, Text("an old checkpoint could not be removed: ", kept));
}

void CheckpointManager::Wait() {
  if (!under_way_) return;
  under_way_ = false;
  OnAllForAll(*communicator_, [&] {
    if (task_ != nullptr && task_->under_way()) task_->Finish();
    return std::string();
  });
}

std::vector<CheckpointRecord> CheckpointManager::List() {
  Wait();
  return ParseRecords(OnRootForAll(*communicator_, [&] {
    std::vector<CheckpointRecord> records;
    for (const StoredCheckpoint& stored : folder_->List()) records.push_back(stored.Record());
    return FormatRecords(records);
  }));
}

std::vector<CheckpointRecord> CheckpointManager::Load(
    const std::vector<Tensor>& tensors, const Wanted& wanted) {
  Wait();
  OnAllForAll(*communicator_, [&] {
    CheckTensors(tensors);
    if (wanted.best && options_.retention.best == BestBy::kNone)
      throw Error(
          ErrorCode::kInvalidArgument,
          "the best checkpoint was requested, but the option best is none; expected lowest or "
          "highest");
    return std::string();
  });
  Agree(
      *communicator_, {.owner = "the load",
                       .items = "tensors to load",
                       .item = "tensor",
                       .lines = Lines(Told(wanted), tensors)});
  std::vector<CheckpointRecord> records = ParseRecords(OnRootForAll(
      *communicator_, [&] { return FormatRecords(LoadFrom(*folder_, wanted, tensors)); }));
  LogRefused(records);
  if (records.empty()) return records;
  // Two broadcasts are under way: see BroadcastInTurn in <dtrun/optimizer.h>.
  std::vector<ops::Work> works;
  for (const Tensor& tensor : tensors) {
    works.push_back(communicator_->StartBroadcast(tensor.buffer, 0));
    if (works.size() > 1) works[works.size() - 2].Wait();
  }
  if (!works.empty()) works.back().Wait();
  return records;
}

void CheckpointManager::LogRefused(const std::vector<CheckpointRecord>& records) const {
  if (communicator_->rank() != 0 || log_ == nullptr || records.size() < 2) return;
  for (size_t i = 0; i + 1 < records.size(); ++i)
    (*log_)(
        base::LogLevel::kWarning, Text(
                                      "checkpoint '", records[i].path, "' is not valid: ",
                                      records[i].refused, "; loaded '", records.back().path, "'"));
}

BackgroundTask::BackgroundTask() {
  // The thread inherits the signal mask: all signals are blocked.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "dtrun-save");
}

BackgroundTask::~BackgroundTask() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundTask::Start(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  under_way_ = true;
  changed_.notify_all();
}

void BackgroundTask::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return task_ == nullptr; });
  under_way_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// A started task runs even if the destructor has begun.
void BackgroundTask::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || task_ != nullptr; });
    if (task_ == nullptr) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      task_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    task_ = nullptr;
    changed_.notify_all();
  }
}

namespace {

constexpr uint64_t kAlignment = 64;

uint64_t PlaceBytes(const Tensor& tensor) {
  return (tensor.buffer.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void Snapshot::Reserve(const std::vector<Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += PlaceBytes(tensor);
  if (bytes <= bytes_) return;
  bytes_ = 0;
  memory_.reset();
  memory_.reset(new char[bytes]);
  // Touches all pages, so that Copy has no page faults.
  std::memset(memory_.get(), 0, bytes);
  bytes_ = bytes;
}

std::vector<Tensor> Snapshot::Copy(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies = tensors;
  char* next = memory_.get();
  for (Tensor& tensor : copies) {
    if (tensor.buffer.bytes() > 0) std::memcpy(next, tensor.buffer.data, tensor.buffer.bytes());
    tensor.buffer.data = next;
    next += PlaceBytes(tensor);
  }
  return copies;
}

}  // namespace dtrun::runtime
