// The dtrun side of the migration tables in docs/guides/embedding.md. This program contains and
// runs all C++ code of that side.
#include <dtrun/dtrun.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

struct Sgd : dtrun::Optimizer {
  float weight = 1;
  std::vector<dtrun::Parameter> list{{"weight", {&weight, 1}, {}}};
  std::vector<dtrun::Parameter>& parameters() override { return list; }
  std::vector<dtrun::NamedBuffer> state() override { return {}; }
  void Step() override {}
};

struct Truncated : dtrun::WireFormat {  // 16 bits of 32: f32 without the lower half
  std::string name() const override { return "truncated"; }
  dtrun::DType dtype() const override { return dtrun::DType::kBF16; }
  uint64_t Count(size_t, const dtrun::Buffer& gradients) override { return gradients.count; }
  void Compress(size_t, const dtrun::Buffer& gradients, const dtrun::Buffer& wire) override {
    const auto* from = static_cast<const uint32_t*>(gradients.data);
    auto* to = static_cast<uint16_t*>(wire.data);
    for (uint64_t k = 0; k < wire.count; ++k) to[k] = static_cast<uint16_t>(from[k] >> 16);
  }
  void Decompress(size_t, const dtrun::Buffer& wire, const dtrun::Buffer& gradients) override {
    const auto* from = static_cast<const uint16_t*>(wire.data);
    auto* to = static_cast<uint32_t*>(gradients.data);
    for (uint64_t k = 0; k < wire.count; ++k) to[k] = static_cast<uint32_t>(from[k]) << 16;
  }
};

void Adaptive(dtrun::Communicator& world) {
  dtrun::NamedQueue queue(world);
  std::vector<float> values(3);
  const dtrun::Buffer x(values.data(), values.size());
  dtrun::NamedOptions adasum;
  adasum.op = dtrun::ReduceOp::kAdasum;
  queue.AllReduce("x", x, adasum).Wait();
}

void Optimizers(dtrun::Communicator& world) {
  Sgd sgd;
  dtrun::DistributedOptimizer optimizer(world, sgd);
  dtrun::DistributedOptimizer summed(world, sgd, {dtrun::ReduceOp::kSum});
  dtrun::DistributedOptimizer adaptive(world, sgd, {dtrun::ReduceOp::kAdasum});
  adaptive.Step();
  dtrun::DistributedOptimizer small(world, sgd, {dtrun::ReduceOp::kAverage, 1 << 20});
  dtrun::BroadcastParameters(world, sgd.parameters());
  dtrun::BroadcastOptimizerState(world, sgd);
  const size_t i = 0;
  optimizer.ZeroGradients();
  optimizer.MarkReady(i);
  optimizer.Synchronize();
  optimizer.Step();
  optimizer.Freeze(i);
  optimizer.Thaw(i);
  optimizer.MarkUnused(i);
  optimizer.Step();
  const int last = optimizer.Join();
  if (last >= world.size()) std::abort();
  const auto scope = optimizer.NoSync();
}

void OptionsOfOptimizers(dtrun::Communicator& world) {
  Sgd sgd;
  dtrun::DistributedOptions options;
  options.backward_passes_per_step = 4;
  options.average_aggregated_gradients = true;
  options.gradient_predivide_factor = 2;
  options.max_gradient_norm = 1;
  options.local_parameters = {"weight"};
  options.sparse_as_dense = true;
  dtrun::LossScaleOptimizer scaled(sgd);
  dtrun::DistributedOptimizer optimizer(world, scaled, options);
  optimizer.Step();
}

struct Layer : Sgd {
  float other = 1;
  Layer() { list.push_back({"bias", {&other, 1}, {}}); }
};

void Buckets(dtrun::Communicator& world) {
  Layer layer;
  dtrun::DistributedOptions options;
  options.first_bucket_bytes = 1 << 16;
  options.groups = {{"weight", "bias"}};
  options.wire = dtrun::Wire::kF16;
  options.rebuild = false;
  dtrun::DistributedOptimizer grouped(world, layer, options);
  grouped.Step();

  options.groups = {};
  options.equal_groups = 2;
  options.wire = dtrun::Wire::kNone;
  options.wire_format = std::make_shared<Truncated>();
  dtrun::DistributedOptimizer truncated(world, layer, options);
  truncated.Step();
}

void SparseGradients(dtrun::Communicator& world) {
  struct Embedding : Sgd {
    float table[6] = {};
    Embedding() { list = {{"table", {table, 6}, {}, 2}}; }
  } embedding;
  dtrun::DistributedOptimizer optimizer(world, embedding);
  const size_t i = 0;
  std::vector<int64_t> rows = {2};
  std::vector<float> gradients = {1, 1};
  const dtrun::Buffer values(gradients.data(), gradients.size());
  optimizer.MarkRows(i, rows.data(), rows.size(), values);
  optimizer.Step();
}

void Objects(dtrun::Communicator& world) {
  const Sgd sgd;
  std::vector<float> running(3);
  std::vector<dtrun::NamedBuffer> buffers = {{"mean", {running.data(), running.size()}}};
  dtrun::BroadcastParameters(world, sgd.list, buffers);
  const std::string text = "lr=0.1";
  dtrun::BroadcastBytes(world, text);
  dtrun::AllGatherBytes(world, text);
  const std::vector<double> objects = {0.5};
  dtrun::AllGatherObjects(world, objects);
  const double loss = 1, examples = 32;
  dtrun::AverageMetrics(world, {{"loss", loss}}, examples);
}

void Reducers(dtrun::Communicator& world) {
  std::vector<float> w(3), b(1);
  dtrun::GradientReducer reducer(world, {{"w", {w.data(), w.size()}}, {"b", {b.data(), b.size()}}});
  const size_t i = 1;
  reducer.MarkReady(i);
  reducer.Wait();
}

void Collectives(dtrun::Communicator& world) {
  const auto p = static_cast<size_t>(world.size());
  std::vector<float> small(2), large(2 * p), other(2 * p);
  dtrun::Buffer x(small.data(), small.size()), all(large.data(), large.size());
  dtrun::Buffer parts(other.data(), other.size());
  const int root = 0;
  world.AllReduce(x);
  world.AllReduce(x, dtrun::ReduceOp::kAverage);
  world.AllReduce(x, dtrun::ReduceOp::kSum, {0.5, 1.0});
  world.Broadcast(x, root);
  world.AllGather(x, all);
  world.AllToAll(all, parts);
  world.ReduceScatter(all, x);
  world.Reduce(x, x, root);
  world.Gather(x, all, root);
  world.Scatter(all, x, root);
  world.Barrier();
  dtrun::Work work = world.StartAllReduce(x);
  while (!work.Test()) {
  }
  work.Wait();

  const dtrun::Counts counts = dtrun::DealRows(5, 2, world.size());
  std::vector<float> rows(10), share(counts[static_cast<size_t>(world.rank())]);
  dtrun::Buffer in(rows.data(), rows.size()), out(share.data(), share.size());
  world.ReduceScatter(in, out, dtrun::ReduceOp::kSum, {}, counts);
  world.AllGather(out, in, counts);

  const dtrun::Memory memory = world.Allocate(4096);
}

void DifferentLengths(dtrun::Communicator& world) {
  const std::vector<float> values(static_cast<size_t>(world.size()));
  const dtrun::Counts splits(values.size(), 1);
  const std::string text = "epoch 1";
  dtrun::AllGatherV(world, values);
  dtrun::AllToAllV(world, values, splits);
  dtrun::AllGatherBytes(world, text);
}

void Messages(dtrun::Communicator& world) {
  if (world.size() != 2) return;
  const int peer = 1 - world.rank();
  float there = 1, here = 0;
  dtrun::Buffer sent(&there, 1), received(&here, 1);
  dtrun::Work in = world.StartReceive(received, peer), out = world.StartSend(sent, peer);
  in.Wait();
  out.Wait();
}

void Communicators(dtrun::Communicator& world) {
  const int colour = 0, key = world.rank();
  std::optional<dtrun::Communicator> part = world.Split(colour, key);
  std::optional<dtrun::Communicator> first = world.Subset({0});
  dtrun::Communicator own = world.Duplicate();
}

}  // namespace

int main() {
  dtrun::Context job = dtrun::Init();
  dtrun::Communicator& world = job.world();
  job.StartTimeline("trace.json");
  Adaptive(job.world());
  Optimizers(world);
  OptionsOfOptimizers(world);
  Buckets(world);
  SparseGradients(world);
  Objects(world);
  Reducers(world);
  Collectives(world);
  DifferentLengths(world);
  Messages(world);
  Communicators(world);
  job.StopTimeline();
  if (job.rank() == 0)
    std::printf("%d of %d\n", job.rank() + job.local_rank() + job.cross_rank() + 1, job.size());
  job.Shutdown();
}
