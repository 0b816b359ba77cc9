#ifndef DTRUN_MODELS_CALLBACKS_PRINT_H_
#define DTRUN_MODELS_CALLBACKS_PRINT_H_

#include <functional>
#include <string>

namespace dtrun::models {

/// Where a callback's lines go; called on rank 0 alone.
using Print = std::function<void(const std::string& line)>;

/// Writes the line to stdout at once.
void PrintLine(const std::string& line);

/// As printf does.
__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...);

}  // namespace dtrun::models

#endif
