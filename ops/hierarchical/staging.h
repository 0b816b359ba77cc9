#ifndef DTRUN_OPS_HIERARCHICAL_STAGING_H_
#define DTRUN_OPS_HIERARCHICAL_STAGING_H_

#include <memory>

#include "ops/hierarchical/group.h"

namespace dtrun::ops::hierarchical {

/// Memory for a part of a chunk between two of its steps.
class Staging {
 public:
  Staging() = default;
  Staging(Group& group, uint64_t count, DType dtype);

  const Buffer& buffer() const { return buffer_; }

 private:
  std::shared_ptr<char> memory_;  // goes back to the group
  Buffer buffer_;
};

/// f32 numbers as they cross the wire when that is compressed: in 16 bits.
class WireBuffer {
 public:
  WireBuffer() = default;
  /// `values`, rounded to the group's wire dtype.
  WireBuffer(Group& group, const Buffer& values);

  bool used() const { return staging_.buffer().count > 0; }
  const Buffer& buffer() const { return buffer_; }
  WireBuffer Slice(const Range& range) const;
  /// Does nothing when not used.
  void WidenInto(const Buffer& values) const;

 private:
  Staging staging_;
  Buffer buffer_;
};

}  // namespace dtrun::ops::hierarchical

#endif
