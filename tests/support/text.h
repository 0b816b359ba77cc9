#ifndef DTRUN_TESTS_SUPPORT_TEXT_H_
#define DTRUN_TESTS_SUPPORT_TEXT_H_

#include <cstddef>
#include <string>

namespace dtrun::testing {

/// The bytes of a file; "" if it cannot be read.
std::string ReadText(const std::string& path);

/// How often `part` occurs in `text`.
size_t CountOf(const std::string& text, const std::string& part);

/// `text` with N for the seconds that a call waited ("gave up after N s: ", "waiting for N s: "),
/// where they are at least `least`. A rank that a busy machine wakes late waits longer than its
/// limit, but none waits less: such seconds stay in the text.
std::string WithoutWaits(const std::string& text, int least);

}  // namespace dtrun::testing

#endif
