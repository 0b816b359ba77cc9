#include "models/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "models/optim/checks.h"
#include "models/optim/update_kernels.h"
#include "models/text.h"

namespace dtrun::models {
namespace {

void CheckColumns(const std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns) {
  if (columns.size() != parameters.size())
    RefuseArgument(
        Text("columns of ", columns.size(), " parameters, expected ", parameters.size()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const uint64_t count = parameters[i].value.count;
    if (columns[i] > 0 && count % columns[i] != 0)
      RefuseArgument(Text(
          parameters[i].name, " has ", count, " elements, expected whole rows of ", columns[i]));
  }
}

}  // namespace

std::vector<uint64_t> MatrixColumns(const std::vector<std::vector<int>>& shapes) {
  std::vector<uint64_t> columns;
  for (const std::vector<int>& shape : shapes)
    columns.push_back(shape.size() < 2 ? 0 : static_cast<uint64_t>(shape.back()));
  return columns;
}

Muon::Muon(
    std::vector<Parameter>& parameters, const std::vector<uint64_t>& columns,
    const MuonOptions& options)
    : parameters_(parameters), options_(options) {
  CheckF32(parameters);
  CheckColumns(parameters, columns);
  CheckPositive("learning_rate", options.learning_rate);
  CheckFraction("momentum", options.momentum);
  CheckNotNegative("weight_decay", options.weight_decay);
  CheckPositive("iterations", options.iterations);
  CheckFraction("beta1", options.beta1);
  CheckFraction("beta2", options.beta2);
  CheckPositive("epsilon", options.epsilon);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const size_t count = parameters[i].value.count;
    State state;
    state.columns = columns[i];
    if (!EndsWithOneOf(parameters[i].name, options.not_decayed))
      state.decay = static_cast<float>(options.weight_decay);
    if (columns[i] > 0) {
      state.momentum.resize(count);
    } else {
      state.m.resize(count);
      state.v.resize(count);
    }
    states_.push_back(std::move(state));
  }
}

std::vector<NamedBuffer> Muon::state() {
  std::vector<NamedBuffer> all;
  const auto append = [&](const char* name, std::vector<float> State::*values) {
    for (size_t i = 0; i < states_.size(); ++i) {
      std::vector<float>& each = states_[i].*values;
      if (!each.empty())
        all.push_back({Text(name, "/", parameters_[i].name), Buffer(each.data(), each.size())});
    }
  };
  append("muon.momentum", &State::momentum);
  append("muon.m", &State::m);
  append("muon.v", &State::v);
  all.push_back({"muon.step", Buffer(&step_, 1)});
  return all;
}

void Muon::set_learning_rate(double rate) {
  CheckNotNegative("learning_rate", rate);
  options_.learning_rate = rate;
}

void Muon::Step() {
  ++step_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.has_gradient || parameter.value.count == 0) continue;
    if (states_[i].columns > 0) {
      StepMatrix(parameter, states_[i]);
    } else {
      StepOther(parameter, states_[i]);
    }
  }
}

void Muon::StepMatrix(const Parameter& parameter, State& state) {
  const size_t columns = state.columns, rows = parameter.value.count / columns;
  const auto* gradient = static_cast<const float*>(parameter.gradient.data);
  const auto momentum = static_cast<float>(options_.momentum);
  orthogonaliser_.Resize(rows, columns);
  for (size_t r = 0, i = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c, ++i) {
      float& m = state.momentum[i];
      m = momentum * m + gradient[i];
      orthogonaliser_.at(r, c) = options_.nesterov ? gradient[i] + momentum * m : m;
    }
  const double rate = options_.learning_rate;
  orthogonaliser_.Apply(
      options_.iterations, static_cast<float>(1 - rate * static_cast<double>(state.decay)),
      static_cast<float>(rate * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)))),
      static_cast<float*>(parameter.value.data));
}

void Muon::StepOther(const Parameter& parameter, State& state) {
  const auto t = static_cast<double>(step_);
  const double rate = options_.learning_rate;
  AdamFactors factors;
  factors.rate = static_cast<float>(
      rate * std::sqrt(1 - std::pow(options_.beta2, t)) / (1 - std::pow(options_.beta1, t)));
  factors.m_share = static_cast<float>(1 - options_.beta1);
  factors.v_share = static_cast<float>(1 - options_.beta2);
  factors.epsilon = static_cast<float>(options_.epsilon);
  factors.decay = static_cast<float>(rate) * state.decay;
  UpdateAdam(
      static_cast<const float*>(parameter.gradient.data), parameter.value.count, factors,
      state.m.data(), state.v.data(), static_cast<float*>(parameter.value.data));
}

}  // namespace dtrun::models
