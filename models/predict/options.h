#ifndef DTRUN_MODELS_PREDICT_OPTIONS_H_
#define DTRUN_MODELS_PREDICT_OPTIONS_H_

#include <string>

#include "models/data/dataset.h"

namespace dtrun::models {

/// The command line of predict, with its defaults.
struct PredictOptions {
  std::string model;
  std::string data_dir = kFashionMnistDir;
  std::string split = "test";  ///< or "train"
  int threads = 0;             ///< 0: those that are this rank's own
  std::string output, json;    ///< "": no file
};

struct ParsedPredictOptions {
  PredictOptions options;
  std::string help;   ///< what --help prints; empty unless it was asked for
  std::string error;  ///< one line; empty when the command line is right
};

/// Neither prints nor exits, so that the ranks can agree on what to do first.
ParsedPredictOptions ParsePredictOptions(int argc, const char* const* argv);

}  // namespace dtrun::models

#endif
