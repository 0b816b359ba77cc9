#ifndef DTRUN_MODELS_FORMATS_WHOLE_FILE_H_
#define DTRUN_MODELS_FORMATS_WHOLE_FILE_H_

#include <cstddef>
#include <string>

namespace dtrun::models {

/// Returns the file's content. Throws Error, one line with the path: kSystem if the file cannot be
/// read, kInvalidArgument if it is longer than `most_bytes`.
std::string ReadFile(const std::string& path, size_t most_bytes);

/// Replaces a file atomically. Writes the content to a new file in the same folder, flushes that
/// file to disk and renames it. Until the rename, the old file is unchanged. Throws Error kSystem
/// with the path and the reason.
void ReplaceFile(const std::string& path, const std::string& content);

}  // namespace dtrun::models

#endif
