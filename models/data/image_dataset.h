#ifndef DTRUN_MODELS_DATA_IMAGE_DATASET_H_
#define DTRUN_MODELS_DATA_IMAGE_DATASET_H_

#include <dtrun/context.h>
#include <dtrun/error.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// What a data set holds.
struct DatasetInfo {
  std::string directory;
  uint64_t train_examples = 0, test_examples = 0;
  ExampleShape shape;
  int classes = 0;
};

/// A training and a test set of labelled images: Fashion-MNIST, MNIST's digits, or others in the
/// same format.
struct ImageDataset {
  Pipeline train, test;
  DatasetInfo info;
};

/// What is wrong with the data itself: it is missing, cannot be read, or is damaged.
class UnusableDataError : public Error {
 public:
  using Error::Error;
};

/// Reads the four files of LoadDataset, which says names and errors.
ImageDataset LoadImageDataset(const std::string& directory);

/// Collective: the same, read once per host into memory that all ranks of the host map, and that is
/// gone with the last of them. Errors are the same on all ranks and name the host where not all
/// hosts have them: those of LoadDataset, as UnusableDataError; kMismatch when the hosts' data
/// differ, or a rank names another directory than the first one of its host, which reads it;
/// kUnavailable when a host has not enough memory for it. Besides, those of every collective.
ImageDataset LoadImageDataset(const std::string& directory, Context& job);
/// For ranks that have no Context: `hosts` in the order in which the ranks lie on them.
ImageDataset LoadImageDataset(
    const std::string& directory, Communicator& world, const std::vector<Host>& hosts);

}  // namespace dtrun::models

#endif
