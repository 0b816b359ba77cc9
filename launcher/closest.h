#ifndef DTRUN_LAUNCHER_CLOSEST_H_
#define DTRUN_LAUNCHER_CLOSEST_H_

#include <string>
#include <vector>

namespace dtrun::launcher {

/// Which of `known` the user may have meant by `word`; "" when none is near.
std::string ClosestTo(const std::string& word, const std::vector<std::string>& known);

}  // namespace dtrun::launcher

#endif
