// The C++ code of docs/guides/embedding.md, which shows pieces of this file. A trainer with its own
// weights, gradients and backward pass becomes a rank. Its model is a chain of layers with y = w x
// each, which learns y = 2 x.
#include <dtrun/dtrun.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Layer {
  std::string name;
  std::vector<float> weights;
  std::vector<float> gradient;
};

std::vector<Layer> MakeLayers(int rank) {
  const auto start = static_cast<float>(1 + rank);
  return {{"first", {start}, {0}}, {"second", {start}, {0}}};
}

// The gradient of (y - 2 x)^2 / 2 at layer i, for x = 1 on rank 0, x = 0.5 on rank 1 and so on.
void Backward(std::vector<Layer>& layers, size_t i, int rank) {
  const float x = 1 / static_cast<float>(1 + rank);
  const float error = (layers[0].weights[0] * layers[1].weights[0] - 2) * x;
  layers[i].gradient[0] = error * x * layers[1 - i].weights[0];
}

void Update(std::vector<Layer>& layers) {
  for (Layer& layer : layers) layer.weights[0] -= 0.1f * layer.gradient[0];
}

float Product(const std::vector<Layer>& layers) {
  return layers[0].weights[0] * layers[1].weights[0];
}

float OwnGradients(dtrun::Context& job) {
  const int steps = 200;
  std::vector<Layer> layers = MakeLayers(job.rank());

  dtrun::Communicator& world = job.world();
  for (Layer& layer : layers)  // everyone starts from rank 0's weights
    world.Broadcast(dtrun::Buffer(layer.weights.data(), layer.weights.size()), 0);

  std::vector<dtrun::Gradient> gradients;
  for (Layer& layer : layers)
    gradients.push_back({layer.name, {layer.gradient.data(), layer.gradient.size()}});
  dtrun::GradientReducer reducer(world, gradients);

  for (int step = 0; step < steps; ++step) {
    for (size_t i = layers.size(); i-- > 0;) {
      Backward(layers, i, job.rank());
      reducer.MarkReady(i);  // may be reduced from here on
    }
    reducer.Wait();  // every gradient is the average over the ranks
    Update(layers);
  }
  return Product(layers);
}

bool MappedGradients(dtrun::Communicator& world, const std::vector<Layer>& layers) {
  std::vector<dtrun::Gradient> gradients;
  for (const Layer& layer : layers)
    gradients.push_back({layer.name, {nullptr, layer.weights.size(), dtrun::DType::kF32}});
  dtrun::GradientReducer reducer(world, gradients, {dtrun::ReduceOp::kSum});

  std::vector<float*> places;  // backward writes here, the optimizer reads here
  for (size_t i = 0; i < layers.size(); ++i)
    places.push_back(static_cast<float*>(reducer.gradient(i).data));

  *places[0] = 1;
  *places[1] = 2;
  reducer.Wait();
  return *places[0] == static_cast<float>(world.size()) && *places[1] == 2 * *places[0];
}

bool Clipped(dtrun::GradientReducer& reducer, std::vector<Layer>& layers) {
  const float limit = 1;

  reducer.Wait();
  float squares = 0;  // of the reduced gradients: the same on all ranks
  for (const Layer& layer : layers)
    for (const float g : layer.gradient) squares += g * g;
  const float factor = squares > limit * limit ? limit / std::sqrt(squares) : 1.0f;
  for (Layer& layer : layers)
    for (float& g : layer.gradient) g *= factor;
  Update(layers);

  return std::isfinite(Product(layers));
}

bool Accumulated(dtrun::GradientReducer& reducer, std::vector<Layer>& layers, int rank) {
  const int micro_batches = 4;

  std::vector<float> sums(layers.size());
  for (int batch = 0; batch < micro_batches; ++batch) {  // no rank talks here
    for (size_t i = layers.size(); i-- > 0;) {
      Backward(layers, i, rank);
      sums[i] += layers[i].gradient[0] / micro_batches;
      if (batch < micro_batches - 1) continue;
      layers[i].gradient[0] = sums[i];
      reducer.MarkReady(i);
    }
  }
  reducer.Wait();

  return std::isfinite(layers[0].gradient[0]);
}

// An optimizer for three weights, as a reader of the page may have.
struct Descent : dtrun::Optimizer {
  std::vector<float> weights{3};
  std::vector<dtrun::Parameter> list{{"w", {weights.data(), weights.size()}, {}}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override { weights[0] -= 0.1f * *static_cast<float*>(list[0].gradient.data); }
};

bool WithOptions(dtrun::Communicator& world) {
  Descent descent;
  const int steps = 3;
  const auto backward = [&](int pass) {
    *static_cast<float*>(descent.list[0].gradient.data) += static_cast<float>(pass + world.rank());
  };

  dtrun::DistributedOptions options;
  options.backward_passes_per_step = 4;         // their gradients add up
  options.average_aggregated_gradients = true;  // and are averaged
  options.max_gradient_norm = 1;                // of all parameters together
  options.check_every = 100;                    // steps: not a number? the same weights everywhere?
  dtrun::DistributedOptimizer optimizer(world, descent, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.ZeroGradients();
    for (int pass = 0; pass < 4; ++pass) {
      backward(pass);  // adds to the gradients
      optimizer.MarkReady(0);
    }
    optimizer.Step();
  }

  return optimizer.gradient_norm() > 1;
}

bool ScaledLoss(dtrun::Communicator& world) {
  Descent descent;
  const int steps = 3;
  const auto backward = [&](double factor) {
    *static_cast<float*>(descent.list[0].gradient.data) += static_cast<float>(factor);
  };

  dtrun::LossScaleOptimizer scaled(descent);
  dtrun::DistributedOptimizer optimizer(world, scaled);
  for (int step = 0; step < steps; ++step) {
    optimizer.ZeroGradients();
    backward(optimizer.loss_scale());  // of the loss times the scale
    optimizer.Step();                  // no rank steps if a gradient is infinite or NaN
  }

  return scaled.state_of_scale().good_steps == 3 && std::abs(descent.weights[0] - 2.7f) < 1e-5f;
}

bool UnevenData(dtrun::Communicator& world) {
  Descent descent;
  dtrun::DistributedOptimizer optimizer(world, descent);
  const int batches = 3 + world.rank();
  const auto backward = [&](int) { *static_cast<float*>(descent.list[0].gradient.data) += 1; };
  const auto set_rate = [] {};

  for (int batch = 0; batch < batches; ++batch) {  // not as many on every rank
    optimizer.ZeroGradients();
    backward(batch);
    optimizer.MarkReady(0);
    set_rate();
    optimizer.Step();
  }
  const int last = optimizer.Join(set_rate);  // until all ranks are done

  return last == world.size() - 1;
}

// Gradient descent on an embedding. A step touches only the rows with gradients.
struct Table : dtrun::Optimizer {
  std::vector<float> values = std::vector<float>(1000 * 4);
  std::vector<dtrun::Parameter> list{{"table", {values.data(), values.size()}, {}, 4}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }

  bool TakesRows() const override { return true; }
  void Step() override {
    const dtrun::RowGradient& gradient = list[0].rows;
    const auto* steps = static_cast<const float*>(gradient.values.data);
    for (uint64_t k = 0; k < gradient.count; ++k)
      for (uint64_t j = 0; j < 4; ++j)
        values[static_cast<size_t>(gradient.rows[k]) * 4 + j] -= 0.1f * steps[k * 4 + j];
  }
};

bool Rows(dtrun::Communicator& world) {
  Table table;
  dtrun::DistributedOptimizer optimizer(world, table);

  const std::vector<int64_t> words = {7, 981, 7};  // of this rank's batch
  std::vector<float> gradients(words.size() * 4, 1.0f);
  optimizer.MarkRows(0, words.data(), words.size(), {gradients.data(), gradients.size()});
  optimizer.Step();

  return table.values[7 * 4] < table.values[981 * 4];
}

// SGD with momentum. StepSlice updates some elements of one parameter.
class Momentum : public dtrun::SliceableOptimizer {
 public:
  std::vector<dtrun::Parameter>& parameters() override { return list_; }
  std::vector<dtrun::StateSlot> slots() const override { return {{"momentum"}}; }
  void StepSlice(const dtrun::ParameterSlice& slice) override {
    const auto* gradient = static_cast<const float*>(slice.gradient);
    auto* momentum = static_cast<float*>(slice.slots[0]);
    auto* value = static_cast<float*>(slice.value);
    for (uint64_t k = 0; k < slice.count; ++k) {
      momentum[k] = 0.9f * momentum[k] + gradient[k];
      value[k] -= 0.1f * momentum[k];
    }
  }

 private:
  std::vector<float> weights_ = std::vector<float>(1000, 1.0f);
  std::vector<dtrun::Parameter> list_{{"w", {weights_.data(), weights_.size()}, {}}};
};

bool Sharded(dtrun::Communicator& world) {
  Momentum inner;
  const int steps = 3;
  const auto backward = [&] {
    dtrun::Buffer& gradient = inner.parameters()[0].gradient;
    for (uint64_t k = 0; k < gradient.count; ++k) static_cast<float*>(gradient.data)[k] += 1;
  };

  dtrun::ShardedOptions options;
  options.max_gradient_norm = 1;  // of all parameters together; 0: one pass less over memory
  dtrun::ShardedOptimizer optimizer(world, inner, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.ZeroGradients();
    backward();              // parameters() says where weights and gradients lie
    optimizer.MarkReady(0);  // may be reduced from here on
    optimizer.Step();        // each rank updates its share, and gets the others'
  }
  std::vector<dtrun::StateBuffer> state = optimizer.ExportState();  // whole, on every rank
  optimizer.ImportState(state);                                     // on any number of ranks

  return state.size() == 1 && state[0].name == "momentum/w" && optimizer.gradient_norm() > 1;
}

double OtherThread(dtrun::Communicator& world, float loss) {
  dtrun::Communicator metrics = world.Duplicate();  // by all ranks, before the thread
  double mean = 0;
  std::thread reporter([&] {
    mean = static_cast<double>(loss);
    metrics.AllReduce(dtrun::Buffer(&mean, 1), dtrun::ReduceOp::kAverage);
  });
  world.Barrier();  // at the same time
  reporter.join();
  return mean;
}

void Train() {
  dtrun::Context job = dtrun::Init();
  const float product = OwnGradients(job);
  std::vector<Layer> layers = MakeLayers(0);
  std::vector<dtrun::Gradient> gradients;
  for (Layer& layer : layers) gradients.push_back({layer.name, {layer.gradient.data(), 1}});
  dtrun::GradientReducer reducer(job.world(), gradients);
  const bool well = MappedGradients(job.world(), layers) && Clipped(reducer, layers) &&
                    Accumulated(reducer, layers, job.rank()) && WithOptions(job.world()) &&
                    ScaledLoss(job.world()) && UnevenData(job.world()) && Rows(job.world()) &&
                    Sharded(job.world()) && OtherThread(job.world(), 3) == 3;
  if (job.rank() == 0) {
    std::printf(
        "%d ranks learn %.3f, %s\n", job.size(), static_cast<double>(product),
        well ? "well" : "badly");
  }
  job.Shutdown();
}

}  // namespace

int main() {
  try {
    Train();
  } catch (const dtrun::Error& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;  // without Shutdown: the launcher ends the other ranks
  }
}
