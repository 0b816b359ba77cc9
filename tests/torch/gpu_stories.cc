// Stories on the simulated GPU. They compare the results of a rank with those of one process on the
// CPU.

#include <dtrun/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/torch/simulated_cuda.h"
#include "tests/torch/stories.h"

namespace torch_stories {
namespace gpu {
namespace {

using dtrun::testing::OwnStream;

at::Device GpuOf(const Communicator& world) {
  const int gpus = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  return {at::kCUDA, static_cast<c10::DeviceIndex>(world.rank() % gpus)};
}

Batch On(const at::Device& device, const Batch& batch) {
  return {batch.x.to(device), batch.y.to(device)};
}

Net NetOn(const at::Device& device) {
  Net net = MakeNet();
  net->to(device);
  return net;
}

Tensor OnCpu(const Tensor& tensor) { return tensor.detach().to(at::kCPU); }

void TrainBeside(Communicator& world, Zero mode, DistributedOptions options = {}) {
  const at::Device gpu = GpuOf(world);
  Net net = NetOn(gpu), alone = MakeNet();
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  DistributedOptimizer optimizer(world, inner, *net, options);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch all = GlobalBatch(world, step), mine = On(gpu, Mine(world, all));
    optimizer.zero_grad(mode == Zero::kNone);
    alone->zero_grad(mode == Zero::kNone);
    const Tensor loss = mine.Loss(net), expected = all.Loss(alone);
    (options.op == dtrun::ReduceOp::kSum ? loss / world.size() : loss).backward();
    expected.backward();
    if (step == 0)
      ExpectClose(OnCpu(GradientsOf(*net)), GradientsOf(*alone), 1e-6, "the first gradient");
    Tensor mean = loss.detach() / world.size();
    dtrun::torch::AllReduce(world, mean);
    ExpectClose(OnCpu(mean), expected.detach(), 1e-5, "the loss");
    optimizer.step();
    sgd.step();
  }
  for (const Tensor& parameter : net->parameters())
    Expect(parameter.device() == gpu && parameter.grad().device() == gpu, "all on the GPU");
  ExpectClose(
      OnCpu(Flat(net->parameters())), Flat(alone->parameters()).detach(), 1e-4, "the last weights");
}

// A gradient with its own bucket, in each of the types.
void Large(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16, torch::kFloat64}) {
    const auto options = torch::TensorOptions().dtype(type).device(gpu);
    Tensor large = torch::zeros({600, 1000}, options).t().requires_grad_();
    Tensor small = torch::zeros({5}, options).requires_grad_();
    torch::optim::SGD inner({large, small}, 0.5);
    DistributedOptions told;
    told.bucket_bytes = 1 << 20;
    DistributedOptimizer optimizer(world, inner, told);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(step == 1);
      (large.sum() * (world.rank() + 1) + small.sum() * 2).backward();
      optimizer.step();
    }
    const double mean = (world.size() + 1) / 2.0;
    Expect(torch::equal(OnCpu(large), torch::full_like(OnCpu(large), -1.5 * mean)), "the large");
    Expect(torch::equal(OnCpu(small), torch::full_like(OnCpu(small), -3)), "the small one");
  }
}

void Unused(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  std::vector<Tensor> w;
  for (int i = 0; i < 3; ++i)
    w.push_back(torch::ones({4}, torch::TensorOptions().device(gpu)).requires_grad_());
  torch::optim::SGD inner(w, torch::optim::SGDOptions(0.5).weight_decay(0.5));
  DistributedOptimizer optimizer(world, inner);
  optimizer.zero_grad(true);
  Tensor loss = w[0].sum();  // w[0] on all ranks, w[1] on rank 0, w[2] on none
  if (world.rank() == 0) loss = loss + w[1].sum();
  loss.backward();
  Expect(!w[2].grad().defined(), "nobody's gradient stays undefined");
  optimizer.step();
  Expect(torch::equal(OnCpu(w[0]), torch::full({4}, 1 - 0.5 * 1.5)), "everybody's");
  const double mean = 1.0 / world.size();
  ExpectClose(OnCpu(w[1]), torch::full({4}, 1 - 0.5 * (mean + 0.5)), 1e-6, "the first rank's");
  Expect(torch::equal(OnCpu(w[2]), torch::ones({4})), "nobody's");
}

void Accumulation(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  Net net = NetOn(gpu), alone = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptimizer optimizer(world, inner, *net);
  for (int64_t step = 0; step < 3; ++step) {
    const Batch first = GlobalBatch(world, 2 * step), second = GlobalBatch(world, 2 * step + 1);
    optimizer.zero_grad(step == 1);
    alone->zero_grad();
    {
      const auto no_sync = optimizer.NoSync();
      On(gpu, Mine(world, first)).Loss(net).backward();
    }
    On(gpu, Mine(world, second)).Loss(net).backward();
    first.Loss(alone).backward();
    second.Loss(alone).backward();
    ExpectClose(OnCpu(GradientsOf(*net)), GradientsOf(*alone), 1e-6, "the sum of two passes");
  }
}

void Tensors(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  const auto options = torch::TensorOptions().device(gpu);
  const int rank = world.rank(), size = world.size();
  Tensor columns = torch::arange(12, options).reshape({3, 4}).to(torch::kFloat32).t();
  dtrun::torch::AllReduce(world, columns);
  Expect(
      torch::equal(
          OnCpu(columns), size * torch::arange(12).reshape({3, 4}).to(torch::kFloat32).t()),
      "a sum of tensors that are not contiguous");
  Tensor counts = torch::full({3}, rank, options.dtype(torch::kInt64));
  dtrun::torch::Broadcast(world, counts, size - 1);
  Expect(torch::equal(OnCpu(counts), torch::full({3}, size - 1, torch::kInt64)), "a broadcast");
  const Tensor rows = torch::full({rank + 1, 2}, rank, options);
  const Tensor all = dtrun::torch::AllGather(world, rows);
  Expect(all.device() == gpu && all.size(0) == size * (size + 1) / 2, "all rows");
  int64_t row = 0;
  for (int r = 0; r < size; ++r)
    for (int i = 0; i <= r; ++i, ++row)
      Expect(OnCpu(all)[row][1].item<float>() == static_cast<float>(r), "the rows of each rank");
}

void Registered(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  const int64_t count = 1 << 20;
  Tensor tensor = torch::ones({count}, torch::TensorOptions().device(gpu));
  {
    const dtrun::torch::RegisteredTensor registered(world, tensor);
    Expect(registered.obstacle() == "", registered.obstacle());
    Expect(registered.tensor().is_same(tensor), "it is the tensor");
    dtrun::torch::AllReduce(world, tensor);
  }
  dtrun::torch::AllReduce(world, tensor);
  const auto size = static_cast<float>(world.size());
  Expect(torch::equal(OnCpu(tensor), torch::full({count}, size * size)), "two sums");
  Expect(dtrun::torch::RegisteredTensor(world, torch::ones(3)).obstacle() == "", "on the CPU");
  ExpectError(
      [&] {
        dtrun::torch::RegisteredTensor(world, tensor.reshape({1024, 1024}).t());
      },
      "register: the tensor is not contiguous");
}

// A network with running statistics, and momenta that only rank 0 has.
void State(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  torch::nn::BatchNorm1d norm(3);
  norm->to(gpu);
  torch::optim::SGD sgd(norm->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  if (world.rank() == 0) {
    torch::NoGradGuard no_grad;
    norm->running_mean.fill_(7);
    norm->weight.fill_(3);
    norm->weight.mutable_grad() = torch::ones({3}, torch::TensorOptions().device(gpu));
    sgd.step();
    norm->weight.mutable_grad() = Tensor();
  }
  DistributedOptions options;
  options.sync_buffers = true;
  DistributedOptimizer optimizer(world, sgd, *norm, options);
  dtrun::torch::BroadcastOptimizerState(world, optimizer);
  Expect(torch::equal(OnCpu(norm->running_mean), torch::full({3}, 7.0)), "rank 0's buffers");
  Expect(torch::equal(OnCpu(norm->weight), torch::full({3}, 2.5)), "rank 0's weights");
  optimizer.zero_grad();
  (norm->weight * 1.0).sum().backward();
  optimizer.step();  // with a momentum of 1: 2.5 - 0.5 * (0.9 + 1)
  ExpectClose(OnCpu(norm->weight), torch::full({3}, 1.55), 1e-6, "rank 0's momenta");
  {
    torch::NoGradGuard no_grad;
    norm->running_mean.fill_(world.rank());
  }
  optimizer.step();
  Expect(torch::equal(OnCpu(norm->running_mean), torch::zeros({3})), "rank 0's buffers again");
}

// All ranks make the same step, so that its combination is the step of one rank.
void Adasum(Communicator& world) {
  Tensor weight = torch::ones({300}, GpuOf(world)).requires_grad_();
  torch::optim::SGD inner({weight}, 0.5);
  DistributedOptions options;
  options.op = dtrun::ReduceOp::kAdasum;
  DistributedOptimizer optimizer(world, inner, options);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (weight * 3).sum().backward();
    optimizer.step();
  }
  ExpectClose(OnCpu(weight), torch::full({300}, -2.0), 1e-6, "two steps of 1.5");
}

void Compressed(Communicator& world) {
  Tensor weight = torch::ones({300}, GpuOf(world)).requires_grad_();
  torch::optim::SGD inner({weight}, 0.5);
  DistributedOptions options;
  options.wire = dtrun::Wire::kF16;
  DistributedOptimizer optimizer(world, inner, options);
  (weight * (world.rank() + 1 + 0x1p-20)).sum().backward();  // rounded to an integer
  optimizer.step();
  const double mean = (world.size() + 1) / 2.0;
  Expect(torch::equal(OnCpu(weight), torch::full({300}, 1 - 0.5 * mean)), "the rounded mean");
}

void Refused(Communicator& world) {
  const at::Device gpu = GpuOf(world);
  Net net = NetOn(gpu);
  net->out->to(at::kCPU);
  torch::optim::SGD of_two = Sgd(*net);
  ExpectError(
      [&] { DistributedOptimizer optimizer(world, of_two, *net); },
      dtrun::torch::internal::Text(
          "parameter 'out.weight' lies on cpu; expected ", gpu,
          ", where parameter 'conv.weight' does"));
}

const Stories kStories = {
    {"zeroed", [](Communicator& world) { TrainBeside(world, Zero::kZeroed); }},
    {"none", [](Communicator& world) { TrainBeside(world, Zero::kNone); }},
    {"sum",
     [](Communicator& world) {
       DistributedOptions options;
       options.op = dtrun::ReduceOp::kSum;
       TrainBeside(world, Zero::kNone, options);
     }},
    {"own_stream",
     [](Communicator& world) {
       const OwnStream stream;
       TrainBeside(world, Zero::kNone);
       Tensors(world);
     }},
    {"large", Large},
    {"unused", Unused},
    {"accumulation", Accumulation},
    {"tensors", Tensors},
    {"registered", Registered},
    {"state", State},
    {"adasum", Adasum},
    {"compressed", Compressed},
    {"refused", Refused},
};

}  // namespace
}  // namespace gpu

Stories GpuStories() {
  dtrun::testing::SimulateCuda();
  return gpu::kStories;
}

}  // namespace torch_stories
