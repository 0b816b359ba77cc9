#ifndef DTRUN_MODELS_MESSAGE_TEXT_H_
#define DTRUN_MODELS_MESSAGE_TEXT_H_

#include <dtrun/error.h>

#include <sstream>
#include <string>

namespace dtrun::models {

/// Returns the concatenation of the parts.
///   Text("rank ", 3, " of ", 4)  ->  "rank 3 of 4"
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Throws Error kInvalidArgument. `text` names the value found and the value expected.
[[noreturn]] inline void RefuseArgument(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

}  // namespace dtrun::models

#endif
