// A rank in place of a cnn_fmnist with the same command line. The rank agrees with the others on
// the options and stalls where they read the data.

#include <dtrun/context.h>
#include <unistd.h>

#include "models/programs/training_options.h"
#include "models/train/agreement.h"

namespace programs::stalled_reader {

int Main(int argc, char** argv) {
  using namespace dtrun::models;
  dtrun::Context job = dtrun::Init();
  AgreeOn({kSuccess, "", SharedSettings(ParseOptions(argc, argv).options)}, job);
  for (;;) pause();
}

}  // namespace programs::stalled_reader
