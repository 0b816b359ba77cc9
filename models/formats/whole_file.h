#ifndef DTRUN_MODELS_FORMATS_WHOLE_FILE_H_
#define DTRUN_MODELS_FORMATS_WHOLE_FILE_H_

#include <cstddef>
#include <string>

namespace dtrun::models {

/// The file's content. Throws Error, one line with the path: kSystem when it cannot be read,
/// kInvalidArgument when it is longer than `most_bytes`.
std::string ReadFile(const std::string& path, size_t most_bytes);

/// Replaces the file by one with this content, or leaves it as it is: it is written under another
/// name beside it, flushed to the disk and renamed. Throws Error kSystem with path and reason.
void ReplaceFile(const std::string& path, const std::string& content);

}  // namespace dtrun::models

#endif
