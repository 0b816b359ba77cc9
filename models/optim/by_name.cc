#include "models/optim/by_name.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "models/message_text.h"
#include "models/optim/adam.h"
#include "models/optim/lamb.h"
#include "models/optim/lars.h"
#include "models/optim/muon.h"
#include "models/optim/sgd.h"
#include "models/optim/update_rules.h"

namespace dtrun::models {
namespace {

using Words = std::vector<std::string>;

// "a, b, c"
std::string List(const Words& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

// A name, the settings that it has, and a function that makes the object.
template <typename Make>
struct Row {
  std::string name;
  Words settings;
  Make make;
};

template <typename Make>
Words NamesOf(const std::vector<Row<Make>>& table) {
  Words names;
  for (const Row<Make>& row : table) names.push_back(row.name);
  return names;
}

// Returns the row of `name`. Refuses an unknown name, and settings that its row does not have.
template <typename Make>
const Row<Make>& Find(
    const std::vector<Row<Make>>& table, const std::string& kind, const std::string& name,
    const Words& given) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const Row<Make>& row) { return row.name == name; });
  if (found == table.end())
    RefuseArgument(Text(kind, " '", name, "', expected one of ", List(NamesOf(table))));
  for (const std::string& each : given) {
    if (std::find(found->settings.begin(), found->settings.end(), each) == found->settings.end())
      RefuseArgument(Text(
          each, ": given with ", kind, " ", name, ", which has ",
          found->settings.empty() ? "no settings" : List(found->settings)));
  }
  return *found;
}

template <typename Setting>
void AddIfGiven(Words& given, const char* name, const std::optional<Setting>& setting) {
  if (setting) given.emplace_back(name);
}

template <typename Value, typename Setting>
void Take(const std::optional<Setting>& setting, Value& value) {
  if (setting) value = *setting;
}

using Parameters = std::vector<Parameter>;
using Shapes = std::vector<std::vector<int>>;
using Made = std::unique_ptr<RateOptimizer>;
using OptimizerRow =
    Row<std::function<Made(Parameters&, const Shapes&, const OptimizerSettings&, UpdateDevice&)>>;

template <typename Options>
Options WithMomentum(const OptimizerSettings& s) {
  Options options;
  Take(s.learning_rate, options.learning_rate);
  Take(s.momentum, options.momentum);
  Take(s.nesterov, options.nesterov);
  Take(s.weight_decay, options.weight_decay);
  return options;
}

template <typename Options>
Options WithBetas(Options options, const OptimizerSettings& s) {
  Take(s.learning_rate, options.learning_rate);
  Take(s.beta1, options.beta1);
  Take(s.beta2, options.beta2);
  Take(s.epsilon, options.epsilon);
  return options;
}

template <typename Options>
Options WithBetasAndDecay(const OptimizerSettings& s) {
  Options options = WithBetas(Options(), s);
  Take(s.weight_decay, options.weight_decay);
  return options;
}

const std::vector<OptimizerRow>& Optimizers() {
  static const Words momentum = {"learning_rate", "momentum", "nesterov", "weight_decay"};
  static const Words betas = {"learning_rate", "beta1", "beta2", "epsilon"};
  static const Words betas_and_decay = {
      "learning_rate", "beta1", "beta2", "epsilon", "weight_decay"};
  static const Words all = {"learning_rate", "momentum", "nesterov",    "beta1",
                            "beta2",         "epsilon",  "weight_decay"};
  static const std::vector<OptimizerRow> table = {
      {"sgd", momentum,
       [](Parameters& p, const Shapes&, const OptimizerSettings& s, UpdateDevice& d) -> Made {
         return std::make_unique<Sgd>(p, WithMomentum<SgdOptions>(s), d);
       }},
      {"adam", betas,
       [](Parameters& p, const Shapes&, const OptimizerSettings& s, UpdateDevice& d) -> Made {
         return std::make_unique<Adam>(p, WithBetas(AdamOptions(), s), d);
       }},
      {"adamw", betas_and_decay,
       [](Parameters& p, const Shapes&, const OptimizerSettings& s, UpdateDevice& d) -> Made {
         return std::make_unique<AdamW>(p, WithBetasAndDecay<AdamWOptions>(s), d);
       }},
      {"lars", momentum,
       [](Parameters& p, const Shapes&, const OptimizerSettings& s, UpdateDevice& d) -> Made {
         return std::make_unique<Lars>(p, WithMomentum<LarsOptions>(s), d);
       }},
      {"lamb", betas_and_decay,
       [](Parameters& p, const Shapes&, const OptimizerSettings& s, UpdateDevice& d) -> Made {
         return std::make_unique<Lamb>(p, WithBetasAndDecay<LambOptions>(s), d);
       }},
      {"muon", all,
       [](Parameters& p, const Shapes& shapes, const OptimizerSettings& s,
          UpdateDevice& d) -> Made {
         const MuonOptions options = WithBetas(WithMomentum<MuonOptions>(s), s);
         return std::make_unique<Muon>(p, MatrixColumns(shapes), options, d);
       }}};
  return table;
}

using ScheduleRow = Row<std::function<Schedule(const ScheduleSettings&, uint64_t steps)>>;

Schedule MakePiecewise(const ScheduleSettings& s, uint64_t) {
  PiecewiseConstantRate value;
  Take(s.boundaries, value.boundaries);
  value.rates = s.factors.value_or(std::vector<double>{1});
  for (double& rate : value.rates) rate *= s.learning_rate;
  return value;
}

Schedule MakeCosine(const ScheduleSettings& s, uint64_t steps) {
  return CosineDecay{s.learning_rate, steps, s.final.value_or(0)};
}

Schedule MakeRestarts(const ScheduleSettings& s, uint64_t steps) {
  CosineRestarts value{.base = s.learning_rate, .steps = s.every.value_or(steps)};
  Take(s.final, value.final);
  Take(s.factor, value.length_factor);
  return value;
}

Schedule MakePolynomial(const ScheduleSettings& s, uint64_t steps) {
  PolynomialDecay value{.base = s.learning_rate, .steps = steps};
  Take(s.final, value.final);
  Take(s.power, value.power);
  return value;
}

Schedule MakeExponential(const ScheduleSettings& s, uint64_t) {
  ExponentialDecay value{.base = s.learning_rate};
  Take(s.factor, value.factor);
  Take(s.every, value.every);
  return value;
}

Schedule MakeCooldown(const ScheduleSettings& s, uint64_t steps) {
  Cooldown value{.base = s.learning_rate, .steps = steps};
  Take(s.fraction, value.fraction);
  return value;
}

const std::vector<ScheduleRow>& Schedules() {
  static const std::vector<ScheduleRow> table = {
      {"constant",
       {},
       [](const ScheduleSettings& s, uint64_t) -> Schedule {
         return ConstantRate{s.learning_rate};
       }},
      {"piecewise", {"boundaries", "factors"}, MakePiecewise},
      {"cosine", {"final"}, MakeCosine},
      {"restarts", {"final", "factor", "every"}, MakeRestarts},
      {"polynomial", {"final", "power"}, MakePolynomial},
      {"exponential", {"factor", "every"}, MakeExponential},
      {"cooldown", {"fraction"}, MakeCooldown}};
  return table;
}

}  // namespace

const std::vector<std::string>& OptimizerNames() {
  static const Words names = NamesOf(Optimizers());
  return names;
}

std::unique_ptr<RateOptimizer> MakeOptimizer(
    const std::string& name, std::vector<Parameter>& parameters,
    const std::vector<std::vector<int>>& shapes, const OptimizerSettings& s, UpdateDevice& device) {
  Words given;
  AddIfGiven(given, "learning_rate", s.learning_rate);
  AddIfGiven(given, "momentum", s.momentum);
  AddIfGiven(given, "nesterov", s.nesterov);
  AddIfGiven(given, "weight_decay", s.weight_decay);
  AddIfGiven(given, "beta1", s.beta1);
  AddIfGiven(given, "beta2", s.beta2);
  AddIfGiven(given, "epsilon", s.epsilon);
  return Find(Optimizers(), "optimizer", name, given).make(parameters, shapes, s, device);
}

const std::vector<std::string>& ScheduleNames() {
  static const Words names = NamesOf(Schedules());
  return names;
}

// If the warm-up is as long as the training, the schedule after it gets 1 step, which is never
// reached.
Schedule MakeSchedule(const std::string& name, const ScheduleSettings& s) {
  Words given;
  AddIfGiven(given, "fraction", s.fraction);
  AddIfGiven(given, "final", s.final);
  AddIfGiven(given, "power", s.power);
  AddIfGiven(given, "factor", s.factor);
  AddIfGiven(given, "every", s.every);
  AddIfGiven(given, "boundaries", s.boundaries);
  AddIfGiven(given, "factors", s.factors);
  const ScheduleRow& row = Find(Schedules(), "schedule", name, given);
  if (s.steps < s.warmup_steps)
    RefuseArgument(
        Text("warmup_steps is ", s.warmup_steps, ", expected at most the ", s.steps, " steps"));
  const Schedule after = row.make(s, std::max<uint64_t>(s.steps - s.warmup_steps, 1));
  if (s.warmup_steps == 0) return after;
  return LinearWarmup{.steps = s.warmup_steps, .after = after};
}

}  // namespace dtrun::models
