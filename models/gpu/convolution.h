#ifndef DTRUN_MODELS_GPU_CONVOLUTION_H_
#define DTRUN_MODELS_GPU_CONVOLUTION_H_

#include <dtrun/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/stream.h"
#include "models/gpu/cudnn.h"
#include "models/layers/tensor.h"

namespace dtrun::models {

/// Trials on the device that select one of several ways to compute the same result.

/// Returns the milliseconds of the work that `enqueue` enqueues into `stream`: the shortest of
/// several runs in a row, after one untimed run. Waits for the stream. Throws the errors of
/// `enqueue`, also if the work cannot be captured into a graph.
double MillisecondsOf(const gpu::Stream& stream, const std::function<void()>& enqueue);

/// The rule that selects one of several ways to compute the same result.
enum class Selection {
  kFirst,    ///< the first proposed way that works: the same in every process
  kFastest,  ///< the fastest way in a trial
};

struct Selected {
  size_t candidate = 0;
  double milliseconds = 0;
};

/// Tries candidates 0, 1, ... count - 1 in this order. Selection::kFirst ends with the first usable
/// candidate, Selection::kFastest with the twelfth. `milliseconds` returns the time of a candidate,
/// or throws Error if the candidate cannot be used. Then `problem` gets the message. A candidate
/// replaces an earlier one only if it is more than 2 % faster, because smaller differences are
/// chance. Returns none if no tried candidate can be used.
std::optional<Selected> SelectCandidate(
    size_t count, Selection selection, const std::function<double(size_t)>& milliseconds,
    std::string& problem);

/// Choices by key. Times differ from trial to trial, and another algorithm may give other bits. So
/// all later requests for a key get its first choice. Thread-safe.
template <typename Choice>
class ChoiceCache {
 public:
  /// Returns the choice for `key`. For a new key, calls `choose`, while other threads wait. If
  /// `choose` throws, Get throws the same error, and the key remains new.
  Choice Get(const std::string& key, const std::function<Choice()>& choose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = choices_.find(key);
    if (found == choices_.end()) found = choices_.emplace(key, choose()).first;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

class ConvolutionWay;

/// One of the three computations of a convolution.
enum class Direction {
  kForward,  ///< computes the output from the input and the filters
  kFilters,  ///< computes the filters' gradient from the input and the output's gradient
  kInput,    ///< computes the input's gradient from the filters and the output's gradient
};

/// The input, the filters and the output, or their gradients. A direction writes one of the tensors
/// and reads the other two.
struct ConvolutionTensors {
  void* input = nullptr;
  void* filters = nullptr;
  void* output = nullptr;
};

/// Scratch memory that library calls use one after the other.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

enum class Tf32 { kOff, kAllowed };

/// Zeros around the input: rows above and below it, and columns on its left and on its right. cuDNN
/// has no engines for padding that differs between opposite sides.
struct ZeroPadding {
  int rows = 0, columns = 0;
};

/// One convolution with square filters, channels last, for a fixed number of rows. cuDNN computes
/// the output, the filters' gradient and the input's gradient. For each direction, cuDNN proposes
/// ways of its graph API and of its classic functions, in the order of the speed that it expects.
/// Only ways that give the same bits in every run are candidates.
///
/// The first convolution of a kind (options, workspace, GPU model) in the process tries the ways.
/// Later convolutions of that kind use the same way, so they compute the same bits. With
/// Selection::kFastest, another process may choose another way.
///
/// All work goes to the constructor's stream and may be captured. One thread at a time, but several
/// threads may make convolutions at once.
class Convolution {
 public:
  struct Options {
    /// The output has floor((input + 2 padding - size) / stride) + 1 rows and columns.
    Shape input, output;
    int size = 3, stride = 1;  ///< of the filters, (output channels, size, size, input channels)
    ZeroPadding padding = {};
    int rows = 0;
    bool input_gradient = true;  ///< BackwardInput is called
    DType dtype = DType::kF32;   ///< of all tensors; sums are in f32
    Tf32 tf32 = Tf32::kAllowed;
    Selection selection = Selection::kFirst;
  };

  /// All buffers, here and in the calls, are aligned to at least 16 bytes. The trials overwrite the
  /// buffers. Throws Error kUnavailable without cuDNN, or if cuDNN has no way to compute the
  /// convolution.
  Convolution(
      const gpu::Stream& stream, const Options& options, const Workspace& workspace, void* input,
      void* filters, void* output);
  ~Convolution();
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  void Forward(const void* input, const void* filters, void* output);
  void BackwardFilters(const void* input, const void* output_gradient, void* filters_gradient);
  void BackwardInput(const void* output_gradient, const void* filters, void* input_gradient);

  /// "forward graph engine 62 2=4 13=0 (0.21 ms), filters classic algorithm 1 math 1 (0.40 ms),
  /// ...": the chosen ways, with cuDNN's numbers for engines, knobs, algorithms and math types.
  const std::string& choice() const { return choice_; }

 private:
  std::unique_ptr<ConvolutionWay> Choose(Direction direction, const ConvolutionTensors& tensors);

  Options options_;
  Workspace workspace_;
  std::string choice_;
  std::unique_ptr<CudnnHandle> handle_;
  std::unique_ptr<ConvolutionWay> forward_, to_filters_, to_input_;
};

/// The parts that all ways of a convolution share. `handle`, `options` and the workspace's memory
/// outlive the ways.
struct ConvolutionSetting {
  const CudnnHandle& handle;
  const Convolution::Options& options;
  Workspace workspace;
};

/// One way to compute one direction of a convolution. A way is an algorithm of cuDNN's classic
/// functions, or an engine of cuDNN's graph API with settings. One thread at a time.
class ConvolutionWay {
 public:
  virtual ~ConvolutionWay() = default;
  /// A name that differs from the names of all other ways: "classic algorithm 1 math 1". A way has
  /// the same name in every process with the same library and the same kind of device.
  virtual std::string name() const = 0;
  /// Makes the objects that Enqueue needs, which may take long. Throws Error if the way cannot be
  /// used.
  virtual void Prepare() {}
  /// Enqueues the computation. Requires a call of Prepare. Throws Error kSystem if a call of cuDNN
  /// fails. May be captured.
  virtual void Enqueue(const ConvolutionTensors& tensors) = 0;
};

using ConvolutionWays = std::vector<std::unique_ptr<ConvolutionWay>>;

/// Returns ways of cuDNN's classic functions that compute a direction as Convolution promises: with
/// the same bits in every run, with sums in f32 and within the workspace. Ways that cuDNN expects
/// to be fast come first. Throws Error kSystem if cuDNN cannot list its ways.
ConvolutionWays ClassicWays(const ConvolutionSetting& setting, Direction direction);
/// The same for cuDNN's graph API. Returns no ways if the library has no graph API.
ConvolutionWays GraphWays(const ConvolutionSetting& setting, Direction direction);

}  // namespace dtrun::models

#endif
