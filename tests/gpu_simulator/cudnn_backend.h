#ifndef DTRUN_TESTS_GPU_SIMULATOR_CUDNN_BACKEND_H_
#define DTRUN_TESTS_GPU_SIMULATOR_CUDNN_BACKEND_H_

#include <cudnn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/gpu_simulator/convolution_math.h"

// What the graph API of simulated cuDNN is made of: engines, descriptors, and the attributes that a
// descriptor takes.

namespace dtrun::gpu_simulator {

struct Knob {
  cudnnBackendKnobType_t type;
  int64_t value;
};

/// What is wrong with an engine.
enum class Fault { kNone, kInPlan, kInExecution, kInCapture, kComputesByChance };

struct Engine {
  int64_t index;
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::vector<Knob> knobs = {};
  Fault fault = Fault::kNone;
  int64_t workspace = 0;
};

using Engines = std::vector<Engine>;

/// Those that a mode of the heuristics proposes for any convolution. Of the first mode there are
/// some that nobody should use, which is what their notes and their workspaces say. The others give
/// the same bits, whichever of them is the fastest by chance.
const Engines& EnginesOf(cudnnBackendHeurMode_t mode);

struct State;

// As many elements as `count`: bytes, or other descriptors.
struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<State>> descriptors;
};

struct State {
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  const Engine* engine = nullptr;  // of engines, configurations, plans
  const Knob* knob = nullptr;
  ConvolutionCall call;                 // of operations and what is made of them
  std::array<int64_t, 3> tensors = {};  // the ids of x, w and y

  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const Attribute& attribute = attributes.at(name);
    std::vector<T> values(static_cast<size_t>(attribute.count));
    std::memcpy(values.data(), attribute.bytes.data(), attribute.bytes.size());
    return values;
  }
  template <typename T>
  T One(cudnnBackendAttributeName_t name) const {
    return All<T>(name).at(0);
  }
  void Inherit(const State& other) {
    engine = other.engine;
    call = other.call;
    tensors = other.tensors;
  }
  const State& Other(cudnnBackendAttributeName_t name) const {
    return *attributes.at(name).descriptors.at(0);
  }
};

/// An attribute that may be set, and has to be before its descriptor is finalized.
struct Rule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
};

const std::vector<Rule>& RulesOf(cudnnBackendDescriptorType_t type);

}  // namespace dtrun::gpu_simulator

#endif
