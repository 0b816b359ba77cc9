#include "runtime/checkpoint/background_task.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace dtrun::runtime {

BackgroundTask::BackgroundTask() {
  // The thread inherits the mask of signals.
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

// A task that was started is done, even if the end has come.
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

}  // namespace dtrun::runtime
