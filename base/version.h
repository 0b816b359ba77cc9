#ifndef DTRUN_BASE_VERSION_H_
#define DTRUN_BASE_VERSION_H_

namespace dtrun::base {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace dtrun::base

#endif
