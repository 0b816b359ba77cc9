#ifndef DTRUN_MODELS_MESSAGE_TEXT_H_
#define DTRUN_MODELS_MESSAGE_TEXT_H_

#include <dtrun/error.h>

#include <sstream>
#include <string>

namespace dtrun::models {

/// The parts, written one after the other.
///   Text("rank ", 3, " of ", 4)  ->  "rank 3 of 4"
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Throws Error kInvalidArgument. The text names what was found and what was expected.
[[noreturn]] inline void RefuseArgument(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

}  // namespace dtrun::models

#endif
