// The options of reductions with parameters on a GPU: the values are those of the same parameters
// in host memory.

#include <dtrun/dtrun.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/gpu/cuda_device.h"
#include "models/optim/by_name.h"
#include "tests/models/thread_world.h"

namespace dtrun::testing {
namespace {

using namespace models;

using Lists = std::vector<std::vector<float>>;

// Parameters of a device, which an optimizer updates.
class PlacedModel {
 public:
  explicit PlacedModel(ComputeDevice& device, const std::string& optimizer = "sgd")
      : device_(device) {
    std::vector<std::vector<int>> shapes;
    for (const uint64_t count : {1000u, 7u, 6000u}) {
      Parameter parameter;
      parameter.name = "p" + std::to_string(parameters_.size());
      parameter.value = Allocate(count);
      Write(parameter.value, [&](size_t k) { return std::sin(0.3 * double(k + count)); });
      parameters_.push_back(parameter);
      shapes.push_back({static_cast<int>(count)});
    }
    OptimizerSettings settings;
    settings.learning_rate = 0.05;
    if (optimizer == "sgd") settings.momentum = 0.9;
    optimizer_ = MakeOptimizer(optimizer, parameters_, shapes, settings, device);
  }

  Optimizer& optimizer() { return *optimizer_; }
  std::vector<Parameter>& parameters() { return optimizer_->parameters(); }
  Buffer Allocate(uint64_t count) {
    return device_.Allocate(count, DType::kF32, memory_.emplace_back());
  }
  void Write(const Buffer& to, const std::function<double(size_t)>& value) {
    std::vector<float> values;
    for (size_t k = 0; k < to.count; ++k) values.push_back(static_cast<float>(value(k)));
    device_.Copy(Buffer(values.data(), values.size()), to);
  }
  // The gradient of a step, which is another on each rank.
  void WriteGradient(size_t i, int rank, int step, double scale = 1) {
    Write(parameters()[i].gradient, [&](size_t k) {
      return scale * std::cos(0.7 * double(k) + 3.1 * step + 1.3 * rank + double(i));
    });
  }
  Lists Read() {
    Lists all;
    for (const Parameter& parameter : parameters()) {
      all.emplace_back(parameter.value.count);
      device_.Copy(parameter.value, Buffer(all.back().data(), all.back().size()));
    }
    return all;
  }

 private:
  ComputeDevice& device_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<RateOptimizer> optimizer_;
};

using Story = std::function<Lists(Communicator&, ComputeDevice&)>;

// Runs a story on two ranks with their parameters in host memory, then on GPUs. The values are the
// same bits.
void CheckAlike(const Story& story) {
  CHECK(OnRanks(2, [&](Communicator& world) {
          const Lists host = story(world, Cpu());
          const auto gpu = MakeCudaDevice({.tf32 = false, .workspace_bytes = 1 << 20});
          if (story(world, *gpu) != host) throw Error(ErrorCode::kSystem, "other values on a GPU");
        }) == std::vector<std::string>{"", ""});
}

Lists TrainWith(Communicator& world, ComputeDevice& device, const DistributedOptions& options) {
  PlacedModel model(device);
  DistributedOptimizer optimizer(world, model.optimizer(), options);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = model.parameters().size(); i-- > 0;) {
      model.WriteGradient(i, world.rank(), step);
      optimizer.MarkReady(i);
    }
    optimizer.Step();
    if (options.max_gradient_norm > 0 && !(optimizer.gradient_norm() > options.max_gradient_norm))
      throw Error(ErrorCode::kSystem, "nothing was clipped");
  }
  return model.Read();
}

TEST_CASE("gradients on a GPU are clipped as in host memory", "[reduction_options]") {
  CheckAlike([](Communicator& world, ComputeDevice& device) {
    DistributedOptions options;
    options.max_gradient_norm = 2;
    return TrainWith(world, device, options);
  });
}

TEST_CASE("gradients on a GPU cross the wire compressed", "[reduction_options]") {
  CheckAlike([](Communicator& world, ComputeDevice& device) {
    DistributedOptions options;
    options.wire = Wire::kF16;
    options.bucket_bytes = 8 << 10;
    return TrainWith(world, device, options);
  });
}

TEST_CASE("adasum combines the steps of parameters on a GPU", "[reduction_options]") {
  CheckAlike([](Communicator& world, ComputeDevice& device) {
    DistributedOptions options;
    options.op = ReduceOp::kAdasum;
    PlacedModel model(device);
    DistributedOptimizer optimizer(world, model.optimizer(), options);
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < 3; ++i) model.WriteGradient(i, world.rank(), step);
      optimizer.Step();
    }
    return model.Read();
  });
}

TEST_CASE("gradients by rows and local parameters work on a GPU", "[reduction_options]") {
  CheckAlike([](Communicator& world, ComputeDevice& device) {
    PlacedModel model(device);
    model.parameters()[0].row_length = 10;
    DistributedOptions options;
    options.local_parameters = {"p1"};
    DistributedOptimizer optimizer(world, model.optimizer(), options);
    for (int step = 0; step < 3; ++step) {
      const std::vector<int64_t> rows = {3 + world.rank(), 8, 3};
      const Buffer values = model.Allocate(30);
      model.Write(values, [&](size_t k) { return std::sin(double(k) + step + world.rank()); });
      optimizer.MarkRows(0, rows.data(), rows.size(), values);
      model.WriteGradient(1, world.rank(), step);
      optimizer.MarkReady(1);
      model.WriteGradient(2, world.rank(), step);
      optimizer.MarkReady(2);
      optimizer.Step();
    }
    return model.Read();
  });
}

TEST_CASE(
    "check_every finds infinite gradients and different values on a GPU", "[reduction_options]") {
  const auto errors = [](bool infinite) {
    return OnRanks(2, [&](Communicator& world) {
      const auto gpu = MakeCudaDevice({.workspace_bytes = 1 << 20});
      PlacedModel model(*gpu);
      DistributedOptions options;
      options.check_every = 1;
      DistributedOptimizer optimizer(world, model.optimizer(), options);
      for (size_t i = 3; i-- > 0;) {
        const bool is_wrong = infinite && i == 1 && world.rank() == 1;
        model.WriteGradient(
            i, world.rank(), 0, is_wrong ? std::numeric_limits<double>::infinity() : 1);
        optimizer.MarkReady(i);
      }
      if (!infinite && world.rank() == 1)
        model.Write(model.parameters()[2].value, [](size_t) { return 5; });
      optimizer.Step();
    });
  };
  const std::string infinite = "the gradient of 'p1' is infinite or NaN on rank 1 in step 0";
  CHECK(errors(true) == std::vector<std::string>{infinite, infinite});
  const std::string differs = "parameter 'p2' of rank 1 differs from rank 0 in step 0";
  CHECK(errors(false) == std::vector<std::string>{differs, differs});
}

// Four steps of a sharded optimizer. The state passes through an export and an import.
Lists TrainShards(
    Communicator& world, ComputeDevice& device, const std::string& name,
    const ShardedOptions& options) {
  PlacedModel model(device, name);
  LossScaleOptions scale;
  scale.initial_scale = 8;
  LossScaleOptimizer scaled(model.optimizer(), scale);
  std::vector<StateBuffer> state;
  for (int step = 0; step < 4; ++step) {
    ShardedOptimizer optimizer(world, scaled, options);
    if (step > 0) optimizer.ImportState(state);
    for (size_t i = 3; i-- > 0;) {
      model.WriteGradient(i, world.rank(), step, 8);
      optimizer.MarkReady(i);
    }
    optimizer.Step();
    state = optimizer.ExportState();
  }
  return model.Read();
}

TEST_CASE("sharded steps update parameters and state on a GPU", "[reduction_options]") {
  const std::string name = GENERATE("adam", "lars", "sgd");
  ShardedOptions options;
  options.max_gradient_norm = GENERATE(0.0, 2.0);
  INFO(name << " with max_gradient_norm " << options.max_gradient_norm);
  CHECK(OnRanks(2, [&](Communicator& world) {
          const Lists host = TrainShards(world, Cpu(), name, options);
          const auto device = MakeCudaDevice({.tf32 = false, .workspace_bytes = 1 << 20});
          const Lists gpu = TrainShards(world, *device, name, options);
          for (size_t i = 0; i < host.size(); ++i)
            for (size_t k = 0; k < host[i].size(); ++k)
              if (!(std::abs(gpu[i][k] - host[i][k]) <= 1e-5f))
                throw Error(ErrorCode::kSystem, "other values on a GPU");
        }) == std::vector<std::string>{"", ""});
}

TEST_CASE("one copy per host is refused on a GPU", "[reduction_options]") {
  const std::string refusal = "parameter 'p0' lies on GPU 0; one_copy_per_host is for host memory";
  CHECK(OnRanks(2, [](Communicator& world) {
          const auto device = MakeCudaDevice({.workspace_bytes = 1 << 20});
          PlacedModel model(*device);
          ShardedOptions options;
          options.one_copy_per_host = true;
          ShardedOptimizer optimizer(world, model.optimizer(), options);
        }) == std::vector<std::string>{refusal, refusal});
}

TEST_CASE("a strategy chooses how gradients on GPUs are summed", "[reduction_options]") {
  const auto [ops, expected] = GENERATE(table<CrossDeviceOps, std::string>(
      {{CrossDeviceOps::kHierarchicalCopy, "cuda_ipc"},
       {CrossDeviceOps::kReductionToOneDevice, "host_staged"}}));
  const CrossDeviceOps chosen = ops;
  const std::string backend = expected;
  CHECK(OnRanks(2, [&](Communicator& world) {
          const auto gpu = MakeCudaDevice({.tf32 = false, .workspace_bytes = 1 << 20});
          MirroredStrategy strategy({world, {{"here", 2}}}, Device{DeviceKind::kCuda, 0});
          strategy.UseCrossDeviceOps(chosen);
          PlacedModel model(*gpu);
          const auto optimizer = strategy.Scope().Distribute(model.optimizer());
          for (size_t i = 0; i < 3; ++i) model.WriteGradient(i, world.rank(), 0);
          optimizer->Step();
          if (DeviceBackend(strategy.replicas(), 0) != backend)
            throw Error(ErrorCode::kSystem, "backend " + DeviceBackend(strategy.replicas(), 0));
          gpu->Synchronize();
        }) == std::vector<std::string>{"", ""});
}

TEST_CASE("named tensors lie on a GPU", "[reduction_options]") {
  CheckAlike([](Communicator& world, ComputeDevice& device) {
    PlacedModel model(device);
    NamedQueue queue(world);
    std::vector<Parameter>& list = model.parameters();
    const Buffer sums = model.Allocate(list[0].value.count);
    NamedQueue::Tensors tensors = {
        QueuedTensor::Flat("a", list[0].value), QueuedTensor::Flat("b", list[1].value)};
    tensors[0].output = sums;
    for (size_t i = 0; i < 2; ++i)
      model.Write(list[i].value, [&](size_t k) { return double(k) * (world.rank() + 1); });
    queue.AllReduce(tensors).Wait();
    NamedWork gathered = queue.AllGather({QueuedTensor::Flat("c", list[1].value)});
    gathered.Wait();
    const Buffer all = gathered.Result();
    Lists values = model.Read();
    values.emplace_back(sums.count);
    device.Copy(sums, Buffer(values.back().data(), values.back().size()));
    const auto* first = static_cast<const float*>(all.data);
    if (all.device >= 0) throw Error(ErrorCode::kSystem, "memory of the work on a GPU");
    values.emplace_back(first, first + all.count);
    return values;
  });
}

}  // namespace
}  // namespace dtrun::testing
