#ifndef DTRUN_RUNTIME_NAMED_SUBMISSION_H_
#define DTRUN_RUNTIME_NAMED_SUBMISSION_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "dtrun/types.h"
#include "runtime/named/request.h"

namespace dtrun::runtime::named {

struct Submission;
struct Tensor;

/// One tensor of a submission, on this rank.
struct Part {
  Submission* submission = nullptr;
  Tensor* tensor = nullptr;  ///< until it is done
  std::shared_ptr<const Request> request;
  Buffer input = {}, output = {};
  /// When this rank first saw that others have not announced it, on the clock of the queue's
  /// patience; negative: it has not.
  base::Duration since = base::Duration(-1);
  bool warned = false, withdrawn = false;

  // The result; written before the submission is done.
  std::unique_ptr<char[]> owned;  ///< the memory of `result`, where the queue made it
  Buffer result = {};
  std::vector<uint64_t> result_shape = {};     ///< empty: that of the request
  std::vector<uint64_t> received_splits = {};  ///< of an all_to_all: rows from each rank
};

inline const std::vector<uint64_t>& ShapeOf(const Part& part) {
  return part.result_shape.empty() ? part.request->shape : part.result_shape;
}

/// Tensors that were submitted together, a barrier or a join: done as one. The queue writes it
/// until `done`, whoever submitted it reads it then.
struct Submission {
 private:
  Part only_;  // most submissions have one part: it needs no memory of its own
  std::vector<Part> several_;

 public:
  explicit Submission(size_t part_count)
      : several_(part_count > 1 ? part_count : 0),
        parts(part_count > 1 ? several_.data() : &only_, part_count) {}
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  const std::span<Part> parts;
  size_t unfinished = 0;  ///< parts
  std::function<void(const std::shared_ptr<Submission>&)> callback = nullptr;
  std::exception_ptr error;
  int last_joined = -1;  ///< of a join
  std::atomic<bool> done{false};
  std::shared_ptr<Submission> self = nullptr;  ///< the queue's, while it is under way
};

}  // namespace dtrun::runtime::named

#endif
