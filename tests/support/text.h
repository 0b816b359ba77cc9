#ifndef DTRUN_TESTS_SUPPORT_TEXT_H_
#define DTRUN_TESTS_SUPPORT_TEXT_H_

#include <cstddef>
#include <string>

namespace dtrun::testing {

/// The bytes of a file; "" if it cannot be read.
std::string ReadText(const std::string& path);

/// How often `part` occurs in `text`.
size_t CountOf(const std::string& text, const std::string& part);

}  // namespace dtrun::testing

#endif
