#ifndef DTRUN_MODELS_MESSAGE_TEXT_H_
#define DTRUN_MODELS_MESSAGE_TEXT_H_

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

}  // namespace dtrun::models

#endif
