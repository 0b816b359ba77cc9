#ifndef DTRUN_LAUNCHER_CONFIG_H_
#define DTRUN_LAUNCHER_CONFIG_H_

#include <string>

#include "launcher/settings.h"

namespace dtrun::launcher {

/// The settings of a configuration file (YAML): one map from options, named as on the command line,
/// to their values.
///   np: 4
///   hosts: [node1:2, node2:2]
///   bucket-mb: 8
/// `name` is the file's, for messages. Throws UsageError "FILE:LINE:COLUMN: ..." for what is no
/// such file: an unknown key, one that stands there twice, a list or map where a value is due.
Settings ParseConfig(const std::string& name, const std::string& text);

}  // namespace dtrun::launcher

#endif
