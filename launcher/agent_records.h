#ifndef DTRUN_LAUNCHER_AGENT_RECORDS_H_
#define DTRUN_LAUNCHER_AGENT_RECORDS_H_

#include <functional>
#include <string>
#include <vector>

#include "launcher/frame.h"

namespace dtrun::launcher {

/// What an agent tells of the flight records that lie in `folder`: each as it is.
std::vector<Frame> FlightFrames(const std::string& folder);

/// Hands over what the ranks have written for the timeline into `folder`, in parts.
void ForEachTracePart(const std::string& folder, const std::function<void(Frame)>& use);

/// How far the ranks on this host are, while they run.
Frame ProgressFrame(const std::string& folder);

}  // namespace dtrun::launcher

#endif
