#ifndef DTRUN_RUNTIME_NAMED_ANNOUNCEMENTS_H_
#define DTRUN_RUNTIME_NAMED_ANNOUNCEMENTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/named/bytes.h"

namespace dtrun::runtime::named {

struct Part;

/// What was submitted last, as it is told: nothing, the last new name of this round, or a place.
inline constexpr uint64_t kNoLast = 0, kLastIsNew = 1, kFirstLastSlot = 2;

/// What a rank has to tell in its next round: see announcements.cc. Not thread-safe.
class Announcements {
 public:
  /// Of this rank, whose table gives so many names a place.
  Announcements(int rank, size_t cache_capacity);

  /// A part that the rank has submitted.
  void Add(Part& part) { parts_.push_back(&part); }
  void Join() { joins_ = true; }
  /// It waits no more, after so many seconds, for that tensor, or for the others to join ("").
  void Withdraw(std::string name, int64_t after_s) {
    withdrawn_.emplace_back(std::move(name), after_s);
  }
  bool empty() const { return parts_.empty() && !joins_ && withdrawn_.empty(); }

  /// All of it, for the others; from here on it is told. Until the next call.
  const std::string& Take();

 private:
  int rank_;
  std::vector<Part*> parts_;
  bool joins_ = false;
  std::vector<std::pair<std::string, int64_t>> withdrawn_;
  std::vector<uint64_t> bits_;  // of places, while it is written
  ByteWriter news_;
};

}  // namespace dtrun::runtime::named

#endif
