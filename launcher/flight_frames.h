#ifndef DTRUN_LAUNCHER_FLIGHT_FRAMES_H_
#define DTRUN_LAUNCHER_FLIGHT_FRAMES_H_

#include <string>
#include <vector>

#include "launcher/frame.h"

namespace dtrun::launcher {

/// The flight records in `folder`, whose ranks may have written anything there, as frames kFlight.
std::vector<Frame> FlightFrames(const std::string& folder);

}  // namespace dtrun::launcher

#endif
