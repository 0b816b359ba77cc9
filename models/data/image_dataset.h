#ifndef DTRUN_MODELS_DATA_IMAGE_DATASET_H_
#define DTRUN_MODELS_DATA_IMAGE_DATASET_H_

#include <dtrun/context.h>
#include <dtrun/error.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/data/pipeline.h"

namespace dtrun::models {

/// The directory and sizes of a data set.
struct DatasetInfo {
  std::string directory;
  uint64_t train_examples = 0, test_examples = 0;
  ExampleShape shape;
  int classes = 0;
};

/// A training set and a test set of labelled images, such as Fashion-MNIST or the digits of MNIST.
struct ImageDataset {
  Pipeline train, test;
  DatasetInfo info;
};

/// The data set itself is missing, unreadable or damaged.
class UnusableDataError : public Error {
 public:
  using Error::Error;
};

/// The bytes of the last data set that this process has loaded. When a job starts lost ranks again
/// (RunElastic), the ranks load the data set anew, and a process that still has it replaces the
/// files. Pass it to each LoadImageDataset of the process.
class KeptImages {
 private:
  friend class ImageLoader;
  struct Content;

  std::shared_ptr<const Content> content_;  // null: nothing is kept
};

/// Reads the four files of LoadDataset, with its errors.
ImageDataset LoadImageDataset(const std::string& directory);

/// Reads the same files once per host. All ranks of the host map the data into their memory. The
/// memory is freed when the last of them ends. Collective. All ranks get the same error. The error
/// names the host, unless all hosts have the same error:
/// - UnusableDataError: an error of LoadDataset.
/// - kMismatch: the hosts have different data, or a rank passes another directory than the
///   first rank of its host. The first rank reads the files.
/// - kUnavailable: a host has too little memory to read the files.
/// - The errors of HostMemory::Share and of every collective.
/// `kept` is the memory of this process for the next load; nullptr: none.
ImageDataset LoadImageDataset(
    const std::string& directory, Context& job, KeptImages* kept = nullptr);
/// For ranks without a Context. `hosts` is in rank order: the first ranks run on hosts[0].
ImageDataset LoadImageDataset(
    const std::string& directory, Communicator& world, const std::vector<Host>& hosts,
    KeptImages* kept = nullptr);

}  // namespace dtrun::models

#endif
