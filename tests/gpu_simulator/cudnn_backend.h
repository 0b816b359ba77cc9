#ifndef DTRUN_TESTS_GPU_SIMULATOR_CUDNN_BACKEND_H_
#define DTRUN_TESTS_GPU_SIMULATOR_CUDNN_BACKEND_H_

#include <cudnn.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/gpu_simulator/convolution_math.h"

// The data of the graph API of simulated cuDNN: engines, descriptors and their attributes.

namespace dtrun::gpu_simulator {

struct Knob {
  cudnnBackendKnobType_t type;
  int64_t value;
};

/// The defect of an engine, if it has one.
enum class Fault { kNone, kInPlan, kInExecution, kInCapture, kComputesByChance };

struct Engine {
  int64_t index;
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::vector<Knob> knobs = {};
  Fault fault = Fault::kNone;
  int64_t workspace = 0;
};

using Engines = std::vector<Engine>;

/// The engines that a mode of the heuristics proposes for any convolution. Some engines of the
/// first mode are unusable: their notes or workspaces say so, or they fail. All usable engines give
/// the same bits, so the result does not depend on which is fastest.
const Engines& EnginesOf(cudnnBackendHeurMode_t mode);

struct State;

// `count` elements: bytes or other descriptors.
struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<State>> descriptors;
};

struct State {
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  const Engine* engine = nullptr;  // for engines, configurations and plans
  const Knob* knob = nullptr;
  ConvolutionCall call;                 // for operations and descriptors made from them
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

/// An attribute that must be set before its descriptor is finalized.
struct Rule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
};

const std::vector<Rule>& RulesOf(cudnnBackendDescriptorType_t type);

}  // namespace dtrun::gpu_simulator

#endif
