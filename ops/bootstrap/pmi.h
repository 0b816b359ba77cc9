#ifndef DTRUN_OPS_BOOTSTRAP_PMI_H_
#define DTRUN_OPS_BOOTSTRAP_PMI_H_

#include <chrono>
#include <string>

#include "ops/bootstrap/local_socket.h"
#include "ops/bootstrap/segment.h"

namespace dtrun::ops {

/// The connection of a rank to the process manager that has started it: MPICH's and Intel MPI's
/// (Hydra) serve each rank until the destructor, and not again. Through it, ranks tell each other
/// where they meet. The protocol is version 1 of the Process Management Interface (Balaji et al.,
/// "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems", 2010).
///
/// All functions throw Error kUnavailable if the process manager refuses or has ended its service,
/// kTimeout, and kSystem.
class Pmi {
 public:
  /// `file`: the number in PMI_FD; the connection is closed with this object. `timeout` is that of
  /// each answer.
  Pmi(int file, std::chrono::seconds timeout);
  ~Pmi();
  Pmi(const Pmi&) = delete;
  Pmi& operator=(const Pmi&) = delete;

  /// A name of this job that no other job of this process manager has.
  const std::string& job() const { return job_; }
  /// Tells all ranks `value`, which has no blanks. They can get it after a barrier.
  void Put(const std::string& key, const std::string& value);
  /// Waits until all ranks have called it.
  void Barrier();
  std::string Get(const std::string& key);

 private:
  std::string Ask(const std::string& command, const std::string& answer);

  FileDescriptor file_;
  std::chrono::seconds timeout_;
  std::string job_, unread_;
};

}  // namespace dtrun::ops

#endif  // DTRUN_OPS_BOOTSTRAP_PMI_H_
