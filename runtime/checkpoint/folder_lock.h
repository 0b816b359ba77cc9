#ifndef DTRUN_RUNTIME_CHECKPOINT_FOLDER_LOCK_H_
#define DTRUN_RUNTIME_CHECKPOINT_FOLDER_LOCK_H_

#include <string>

#include "runtime/checkpoint/files.h"

namespace dtrun::runtime {

/// The right to write into a folder: a lock of the kernel's (flock) on its file ".lock", which ends
/// with this object or with the process. The file stays, and means nothing by itself; what stands
/// in it is for the error of another one.
class FolderLock {
 public:
  /// Throws Error kUnavailable when another process has it, whose host and process it names, and
  /// kSystem when nothing can be written there.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

}  // namespace dtrun::runtime

#endif
