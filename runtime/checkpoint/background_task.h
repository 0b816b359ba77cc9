#ifndef DTRUN_RUNTIME_CHECKPOINT_BACKGROUND_TASK_H_
#define DTRUN_RUNTIME_CHECKPOINT_BACKGROUND_TASK_H_

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace dtrun::runtime {

/// A thread for one task at a time. It takes no signals. For one thread.
class BackgroundTask {
 public:
  /// Throws std::system_error where there can be no thread.
  BackgroundTask();
  /// Waits for the task.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// After Finish, or as the first.
  void Start(std::function<void()> task);
  /// Started, and Finish was not called.
  bool under_way() const { return under_way_; }
  /// Returns when the task has ended. Throws what it threw.
  void Finish();

 private:
  void Run();

  bool under_way_ = false;  // of the caller alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace dtrun::runtime

#endif
