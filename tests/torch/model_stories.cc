// Collectives on tensors, and layers and optimizers that need other ranks: each against one process
// on the global batch.

#include <dtrun/torch.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/stories.h"

namespace torch_stories {
namespace {

using dtrun::ReduceOp;

Tensor Row(int64_t value) { return torch::full({1, 2}, value, torch::kLong); }

// The rows of rank r are (r, r) once for each of its `count` rows.
Tensor Rows(int64_t value, int64_t count) { return Row(value).repeat({count, 1}); }

void Collectives(Communicator& world) {
  const int64_t rank = world.rank(), p = world.size();
  const Tensor to_root = torch::full({3}, rank + 1);
  dtrun::torch::Reduce(world, to_root, static_cast<int>(p - 1));
  const int64_t sum = p * (p + 1) / 2;
  Expect(to_root[0].item<int64_t>() == (rank == p - 1 ? sum : rank + 1), "only the root changes");

  const Tensor columns = torch::arange(2 * (p + 1)).view({2, p + 1}).t();  // not contiguous
  const Tensor share = dtrun::torch::ReduceScatter(world, columns);
  Expect(share.size(0) == (rank == 0 ? 2 : 1), "the first rank has the odd row");
  const int64_t first = rank == 0 ? 0 : rank + 1;
  Expect(torch::equal(share[0], columns[first] * p), "the row of each rank");

  auto work = dtrun::torch::StartAllReduce(world, to_root, ReduceOp::kMax);
  auto rows = dtrun::torch::StartAllGather(world, Rows(rank, rank + 1));
  work.Wait();
  Expect(to_root[0].item<int64_t>() == sum, "two operations at once");
  const Tensor all = rows.Wait();
  Expect(all.size(0) == sum && torch::equal(all[sum - 1], Row(p - 1)[0]), "uneven rows");
  Expect(rows.Test() && torch::equal(rows.Wait(), all), "a result can be asked for again");

  const Tensor gathered = dtrun::torch::Gather(world, Rows(rank, rank), static_cast<int>(p - 1));
  Expect(gathered.defined() == (rank == p - 1), "only the root has the rows");
  if (gathered.defined() && p > 1)
    Expect(gathered.size(0) == p * (p - 1) / 2 && gathered[0][0].item<int64_t>() == 1, "in order");

  Tensor parts;
  std::vector<int64_t> splits;
  for (int64_t r = 0; r < p; ++r) splits.push_back(r);
  if (rank == 0) parts = torch::arange(p * (p - 1) / 2, torch::kFloat64).view({-1, 1});
  const Tensor mine = dtrun::torch::Scatter(world, parts, 0, splits);
  Expect(mine.sizes() == at::IntArrayRef({rank, 1}), "the rows of each rank");
  if (rank > 0)
    Expect(mine[0][0].item<double>() == static_cast<double>(rank * (rank - 1) / 2), "in order");

  std::vector<int64_t> to_each(static_cast<size_t>(p), rank + 1);
  const auto exchanged = dtrun::torch::AllToAll(world, Rows(rank, p * (rank + 1)), to_each);
  Expect(exchanged.rows.size(0) == sum && exchanged.splits.back() == p, "rows of all ranks");
  Expect(torch::equal(exchanged.rows[sum - 1], Row(p - 1)[0]), "in rank order");

  if (p == 1) return;
  const int next = static_cast<int>((rank + 1) % p), last = static_cast<int>((rank + p - 1) % p);
  Tensor received = torch::zeros({2, 2}, torch::kLong).t();
  auto in = dtrun::torch::StartReceive(world, received, last);
  auto out = dtrun::torch::StartSend(world, torch::full({2, 2}, rank), next);
  in.Wait();
  out.Wait();
  Expect(torch::equal(received, torch::full({2, 2}, last)), "a message around the ring");
}

void RefusedCollectives(Communicator& world) {
  const Tensor rows = torch::ones({world.size() + 1, 2});
  ExpectError(
      [&] { dtrun::torch::AllToAll(world, rows); },
      std::to_string(world.size() + 1) + " rows cannot be split evenly among ");
  ExpectError(
      [&] { dtrun::torch::AllToAll(world, rows, {1}); },
      "`splits` has 1 rows for 1 ranks; expected ");
  ExpectError(
      [&] {
        dtrun::torch::Gather(world, torch::ones({1, world.rank() == 1 ? 3 : 2}));
      },
      "gather: the ranks differ in tensor 0: f32 rows of [2] on rank");
  ExpectError(
      [&] { dtrun::torch::Scatter(world, rows, 0); },
      world.rank() == 0 ? "scatter: 3 rows cannot be split evenly among 2 ranks"
                        : "scatter: rank 0 refuses its arguments");
  ExpectError(
      [&] {
        dtrun::torch::AllReduce(world, torch::ones({2, 2}).to_sparse());
      },
      "all_reduce: the tensor has layout Sparse");
}

// ---- Batch norm ---------------------------------------------------------------------------------

struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(4)) {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(options));
    hidden = register_module(
        "hidden", torch::nn::Sequential(
                      torch::nn::Linear(4 * 6 * 6, 8), torch::nn::BatchNorm1d(8),
                      torch::nn::Functional(torch::tanh), torch::nn::Linear(8, 3)));
    to(torch::kFloat64);
  }
  Tensor forward(const Tensor& x) { return hidden->forward(torch::relu(norm(conv(x))).flatten(1)); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential hidden{nullptr};
};
TORCH_MODULE(NormedNet);

Tensor BuffersOf(const torch::nn::Module& module) {
  std::vector<Tensor> buffers;
  for (const Tensor& buffer : module.buffers()) buffers.push_back(buffer.to(torch::kFloat64));
  return Flat(buffers);
}

// Ranks with different numbers of examples.
void SyncedBatchNorms(Communicator& world) {
  torch::manual_seed(7);
  NormedNet net, alone;
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i)
      alone->parameters()[i].copy_(net->parameters()[i]);
  }
  torch::optim::SGD inner = Sgd(*net), sgd = Sgd(*alone);
  const dtrun::torch::SyncBatchNorms synced(world, *net);
  Expect(synced.size() == 2, "both batch norms");
  DistributedOptions options;
  options.op = ReduceOp::kSum;
  DistributedOptimizer optimizer(world, inner, *net, options);
  const int64_t rank = world.rank(), p = world.size();
  const auto size_of = [&](int64_t r) { return 3 * r + 2; };
  int64_t begin = 0, total = 0;
  for (int64_t r = 0; r < p; ++r) {
    if (r == rank) begin = total;
    total += size_of(r);
  }
  const auto mine = torch::indexing::Slice(begin, begin + size_of(rank));
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    const Tensor x = 3 + 2 * torch::randn({total, 1, 8, 8}, torch::kFloat64);
    const Tensor y = torch::randint(3, {total});
    const auto loss = [&](NormedNet& model, const Tensor& in, const Tensor& out) {
      return torch::nn::functional::cross_entropy(
                 model(in), out,
                 torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum)) /
             total;
    };
    optimizer.zero_grad();
    sgd.zero_grad();
    loss(net, x.index({mine}), y.index({mine})).backward();
    loss(alone, x, y).backward();
    ExpectClose(GradientsOf(*net), GradientsOf(*alone), 1e-10, "the gradient");
    optimizer.step();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-10, "the weights");
  ExpectClose(BuffersOf(*net), BuffersOf(*alone), 1e-10, "the running statistics");
  net->eval();
  alone->eval();
  torch::manual_seed(9);
  const Tensor x = torch::randn({world.rank() + 2, 1, 8, 8}, torch::kFloat64);
  ExpectClose(net(x), alone(x), 1e-10, "the output in evaluation, of this rank alone");
}

// The same as a module, in f32 and bf16, and without parameters.
void SyncBatchNormModule(Communicator& world) {
  using torch::nn::BatchNormOptions;
  for (const auto& options :
       {BatchNormOptions(5), BatchNormOptions(5).affine(false),
        BatchNormOptions(5).momentum(c10::nullopt), BatchNormOptions(5).track_running_stats(false)})
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      dtrun::torch::SyncBatchNorm synced(world, options);
      torch::nn::BatchNorm1d plain(options);
      torch::manual_seed(3);
      const Tensor all = (torch::randn({6 * world.size(), 5}) + 100).to(type);
      Tensor x = all.slice(0, 6 * world.rank(), 6 * (world.rank() + 1)).clone().requires_grad_();
      Tensor whole = all.to(torch::kFloat32).requires_grad_();
      const Tensor y = synced(x), expected = plain(whole);
      const double tolerance = type == torch::kFloat32 ? 1e-4 : 1e-2;
      const auto part = [&](const Tensor& of) {
        return of.slice(0, 6 * world.rank(), 6 * (world.rank() + 1));
      };
      Expect(y.scalar_type() == type, "the type of the input");
      ExpectClose(y, part(expected), tolerance, "the output");
      const Tensor factor = torch::arange(30 * world.size()).view_as(all).to(torch::kFloat32);
      (y.to(torch::kFloat32) * part(factor)).sum().backward();
      (expected * factor).sum().backward();
      ExpectClose(x.grad(), part(whole.grad()), 10 * tolerance, "the input's gradient");
      if (options.track_running_stats())
        ExpectClose(synced->running_var, plain->running_var, 1e-4, "the running variance");
      synced->eval();
      plain->eval();
      if (options.track_running_stats())
        ExpectClose(synced(x), plain(x.to(torch::kFloat32)), tolerance, "in evaluation");
    }
}

void RefusedBatchNorms(Communicator& world) {
  const torch::nn::Linear none(2, 2);
  ExpectError(
      [&] { const dtrun::torch::SyncBatchNorms synced(world, *none); },
      "the model has no BatchNorm1d, 2d or 3d");
  const NormedNet bare(torch::nn::BatchNormOptions(4).affine(false).track_running_stats(false));
  ExpectError(
      [&] { const dtrun::torch::SyncBatchNorms synced(world, *bare); },
      "module 'norm' has neither parameters nor running statistics");
  dtrun::torch::SyncBatchNorm norm(world, torch::nn::BatchNormOptions(2));
  ExpectError([&] { norm(torch::ones({2})); }, "the input is [2]; expected 2 or more dimensions");
  ExpectError(
      [&] {
        norm(torch::ones({world.rank() == 0 ? 1 : 0, 2}));
      },
      "found one value per channel on all ranks together");
}

// ---- Uneven data --------------------------------------------------------------------------------

// Small gradients, one that has a bucket of its own, and a parameter that only the first steps use.
struct UnevenNetImpl : torch::nn::Module {
  UnevenNetImpl() {
    wide = register_module("wide", torch::nn::Linear(64, 5000));
    out = register_module("out", torch::nn::Linear(5000, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(5000));
    extra = register_parameter("extra", torch::ones({3}));
  }
  Tensor Loss(const Batch& batch, bool uses_extra) {
    const Tensor y = out(torch::relu(norm(wide(batch.x.flatten(1)))));
    return torch::nn::functional::cross_entropy(uses_extra ? y * extra : y, batch.y);
  }
  torch::nn::Linear wide{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor extra;
};
TORCH_MODULE(UnevenNet);

Batch BatchOf(int rank, int step) {
  torch::manual_seed(static_cast<uint64_t>(100 * step + rank));
  const Tensor x = torch::randn({kPerRank, 1, 8, 8});
  return {x, torch::randint(3, {kPerRank})};
}

UnevenNet MakeUnevenNet() {
  torch::manual_seed(7);
  return UnevenNet();
}

constexpr int kShortest = 2, kMore = 2;  // batches of rank 0, and more of each following rank

int BatchesOf(int rank) { return kShortest + kMore * rank; }
bool UsesExtra(int step) { return step < 3; }

// One process that computes the loss of all ranks that have data. The buffers are those of the
// first of them.
void TrainUnevenAlone(UnevenNet& net, int ranks, ReduceOp op) {
  torch::optim::SGD sgd = Sgd(*net, 0.01);
  torch::optim::StepLR rates(sgd, 2, 0.5);
  for (int step = 0; step < BatchesOf(ranks - 1); ++step) {
    net->zero_grad(/*set_to_none=*/true);
    std::vector<Tensor> before, after;
    for (const Tensor& buffer : net->buffers()) before.push_back(buffer.clone());
    const auto restore = [&](const std::vector<Tensor>& values) {
      for (size_t i = 0; i < values.size(); ++i) net->buffers()[i].copy_(values[i]);
    };
    int with_data = 0;
    for (int rank = 0; rank < ranks; ++rank) with_data += BatchesOf(rank) > step ? 1 : 0;
    for (int rank = ranks - with_data; rank < ranks; ++rank) {
      restore(before);
      const Tensor loss = net->Loss(BatchOf(rank, step), UsesExtra(step));
      (op == ReduceOp::kAverage ? loss / with_data : loss).backward();
      if (after.empty())
        for (const Tensor& buffer : net->buffers()) after.push_back(buffer.clone());
    }
    restore(after);
    sgd.step();
    rates.step();
  }
}

void Uneven(Communicator& world, ReduceOp op) {
  UnevenNet net = MakeUnevenNet(), alone = MakeUnevenNet();
  torch::optim::SGD inner = Sgd(*net, 0.01);
  DistributedOptions options;
  options.op = op;
  options.bucket_bytes = 1 << 20;
  options.sync_buffers = true;
  DistributedOptimizer optimizer(world, inner, *net, options);
  torch::optim::StepLR rates(optimizer, 2, 0.5);
  for (int step = 0; step < BatchesOf(world.rank()); ++step) {
    optimizer.zero_grad(/*set_to_none=*/true);
    net->Loss(BatchOf(world.rank(), step), UsesExtra(step)).backward();
    if (step + 1 == BatchesOf(world.rank())) break;  // Join makes this step
    optimizer.step();
    rates.step();
  }
  int more = 0;
  const int last = optimizer.Join([&] {
    ++more;
    rates.step();  // after the step before
  });
  Expect(last == world.size() - 1, "the last rank joined last");
  Expect(more == BatchesOf(last) - BatchesOf(world.rank()), "a call before each step of others");
  TrainUnevenAlone(alone, world.size(), op);
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-6, "the weights");
  ExpectClose(BuffersOf(*net), BuffersOf(*alone), 1e-6, "the buffers");

  // The next epoch begins as usual.
  optimizer.zero_grad();
  net->Loss(BatchOf(world.rank(), 0), true).backward();
  optimizer.step();
  const Tensor weights = Flat(net->parameters()).detach();
  Tensor first = weights.clone();
  dtrun::torch::Broadcast(world, first);
  Expect(torch::equal(weights, first), "the same weights on all ranks");
}

// ---- Sparse gradients ---------------------------------------------------------------------------

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse) {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(sparse)));
    bags = register_module(
        "bags", torch::nn::EmbeddingBag(
                    torch::nn::EmbeddingBagOptions(10, 3).sparse(sparse).mode(torch::kSum)));
    out = register_module("out", torch::nn::Linear(3, 2));
  }
  Tensor Loss(const Tensor& ids, bool uses_bags) {
    Tensor x = words(ids);
    if (uses_bags) x = x + bags(ids.unsqueeze(1) % 10);
    return out(x).square().mean();
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::EmbeddingBag bags{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Words);

Tensor IdsOf(int rank, int step) {
  torch::manual_seed(static_cast<uint64_t>(10 * step + rank));
  return torch::randint(20, {4});
}

// Rank r has 3 + r batches. The gradients of one process are dense.
void SparseGradients(Communicator& world) {
  const auto make = [](bool sparse) {
    torch::manual_seed(5);
    return Words(sparse);
  };
  Words net = make(true), alone = make(false);
  torch::optim::SGD inner(net->parameters(), 0.1), sgd(alone->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *net);
  const int p = world.size(), mine = 3 + world.rank();
  for (int step = 0; step < mine; ++step) {
    optimizer.zero_grad(step == 1);
    net->Loss(IdsOf(world.rank(), step), step > 0).backward();
    if (step == 0) {
      Expect(net->words->weight.grad().is_sparse(), "a gradient by rows");
      Expect(net->words->weight.grad()._nnz() <= 4 * p, "of the words of all ranks");
    }
    optimizer.step();
  }
  optimizer.Join();
  for (int step = 0; step < 3 + p - 1; ++step) {
    sgd.zero_grad();
    int with_data = 0;
    for (int rank = 0; rank < p; ++rank) with_data += 3 + rank > step ? 1 : 0;
    for (int rank = p - with_data; rank < p; ++rank)
      (alone->Loss(IdsOf(rank, step), step > 0) / with_data).backward();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-6, "the weights");
}

// All gradients are sparse. Rank r has 1 + r batches.
void SparseAlone(Communicator& world) {
  const auto make = [](bool sparse) {
    torch::manual_seed(5);
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(sparse));
  };
  const auto loss = [](torch::nn::Embedding& net, int rank, int step) {
    return net(IdsOf(rank, step)).square().mean();
  };
  torch::nn::Embedding net = make(true), alone = make(false);
  torch::optim::SGD inner(net->parameters(), 0.1), sgd(alone->parameters(), 0.1);
  DistributedOptimizer optimizer(world, inner, *net);
  const int p = world.size(), mine = 1 + world.rank();
  for (int step = 0; step < mine; ++step) {
    optimizer.zero_grad();
    loss(net, world.rank(), step).backward();
    if (step + 1 == mine) break;  // Join makes this step
    optimizer.step();
  }
  Expect(optimizer.Join() == p - 1, "the last rank joined last");
  for (int step = 0; step < p; ++step) {
    sgd.zero_grad();
    for (int rank = step; rank < p; ++rank) (loss(alone, rank, step) / (p - step)).backward();
    sgd.step();
  }
  ExpectClose(Flat(net->parameters()), Flat(alone->parameters()), 1e-6, "the weights");

  optimizer.zero_grad();
  loss(net, world.rank(), 0).backward();
  ExpectError([&] { loss(net, world.rank(), 1).backward(); }, "has already reduced");
}

void RefusedSparse(Communicator& world) {
  Words net(true);
  torch::optim::SGD inner(net->parameters(), 0.1);
  {
    DistributedOptimizer optimizer(world, inner);
    ExpectError(
        [&] { net->Loss(IdsOf(0, 0), false).backward(); },
        "has layout Sparse; expected a dense one (of an embedding with sparse(true): pass the "
        "module to the DistributedOptimizer)");
  }
  net->zero_grad(true);
  DistributedOptimizer optimizer(world, inner, *net);
  Tensor loss = net->Loss(IdsOf(0, 0), false);
  if (world.rank() == 0) loss = loss + net->words->weight.sum();
  const char* const text =
      "parameter 'words.weight' has layout Strided; its embedding has the option";
  if (world.rank() == 0) {
    ExpectError([&] { loss.backward(); }, text);
    ExpectError([&] { optimizer.step(); }, text);
  } else {
    loss.backward();
  }
}

// ---- Sharded state ------------------------------------------------------------------------------

using Groups = dtrun::torch::ShardedOptimizer::Groups;

std::unique_ptr<torch::optim::Optimizer> MakeAdam(const Groups& groups) {
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.01));
}

// Two groups with options of their own.
Groups TwoGroups(Net& net) {
  Groups groups;
  groups.emplace_back(net->conv->parameters());
  groups.emplace_back(
      std::vector<Tensor>{net->hidden->weight, net->hidden->bias, net->out->weight, net->out->bias},
      std::make_unique<torch::optim::AdamOptions>(0.005));
  return groups;
}

std::string Saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::save(optimizer, stream);
  return stream.str();
}

void ShardedState(Communicator& world) {
  Net net = MakeNet(), alone = MakeNet();
  dtrun::torch::ShardedOptimizer adam(world, TwoGroups(net), MakeAdam);
  const auto plain = MakeAdam(TwoGroups(alone));
  DistributedOptimizer optimizer(world, adam, *net), beside(world, *plain, *alone);
  torch::optim::StepLR rates(optimizer, 2, 0.5), rates_beside(beside, 2, 0.5);
  const auto train = [&](int begin, int end) {
    for (int step = begin; step < end; ++step) {
      const Batch mine = Mine(world, GlobalBatch(world, step));
      for (const auto& [model, with] : {std::pair{&net, &optimizer}, std::pair{&alone, &beside}}) {
        with->zero_grad();
        mine.Loss(*model).backward();
        with->step();
      }
      rates.step();
      rates_beside.step();
    }
    Expect(
        torch::equal(Flat(net->parameters()), Flat(alone->parameters())),
        "the bits of an optimizer that is not sharded");
  };
  train(0, 5);
  uint64_t states = adam.inner().state().size();
  Expect(states < 6 || world.size() == 1, "each rank has the state of a part");
  world.AllReduce(dtrun::Buffer(&states, 1));
  Expect(states == 6, "together they have all of it");

  const int root = world.size() - 1;
  ExpectError([&] { Saved(adam); }, "save without the state of all ranks; call Collect(root)");
  adam.Collect(root);
  std::string saved = world.rank() == root ? Saved(adam) : "";
  saved = dtrun::BroadcastBytes(world, saved, root);
  {
    // An optimizer that is not sharded continues from it, and the sharded one from its own.
    std::istringstream stream(saved);
    plain->state().clear();
    torch::load(*plain, stream);
  }
  train(5, 8);
  const std::string of_plain = Saved(*plain);
  adam.inner().state().clear();
  std::istringstream stream(of_plain);
  torch::load(adam, stream);
  train(8, 11);
}

void RefusedSharded(Communicator& world) {
  Net net = MakeNet();
  Groups twice = TwoGroups(net);
  twice.emplace_back(net->conv->parameters());
  ExpectError(
      [&] { dtrun::torch::ShardedOptimizer adam(world, twice, MakeAdam); },
      "a parameter is listed twice in the groups");
  ExpectError(
      [&] {
        dtrun::torch::ShardedOptimizer adam(
            world, TwoGroups(net), [](const Groups&) { return nullptr; });
      },
      "`make` returned null");
  dtrun::torch::ShardedOptimizer adam(world, TwoGroups(net), MakeAdam);
  ExpectError(
      [&] { dtrun::torch::BroadcastOptimizerState(world, adam); },
      "no rank has the whole state of a ShardedOptimizer");
  if (world.size() == 1) return;
  const torch::nn::Linear other(world.rank() == 0 ? 3 : 4, 2);
  ExpectError(
      [&] { dtrun::torch::ShardedOptimizer differs(world, Groups{other->parameters()}, MakeAdam); },
      "sharded_optimizer: the ranks differ in tensor 0: Float[2, 3] on rank 0");
}

// The same new folder on all ranks. Rank 0 removes it.
class SharedFolder {
 public:
  explicit SharedFolder(Communicator& world) {
    std::string made = std::filesystem::temp_directory_path() / "stories.XXXXXX";
    if (world.rank() == 0) made_ = mkdtemp(made.data());
    path_ = dtrun::BroadcastBytes(world, made_);
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (!made_.empty()) std::filesystem::remove_all(made_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string made_, path_;
};

void Checkpoints(Communicator& world) {
  const SharedFolder folder(world);
  const auto train = [&](Net& net, DistributedOptimizer& optimizer, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      Mine(world, GlobalBatch(world, step)).Loss(net).backward();
      optimizer.step();
    }
  };
  // Saved with sharded state while training goes on.
  Net net = MakeNet();
  net->register_buffer("seen", torch::zeros({}, torch::kLong));
  dtrun::torch::ShardedOptimizer adam(world, TwoGroups(net), MakeAdam);
  DistributedOptimizer optimizer(world, adam, *net);
  dtrun::CheckpointOptions keep;
  keep.max_to_keep = 2;
  dtrun::torch::CheckpointManager checkpoints(world, folder.path(), *net, optimizer, keep);
  Expect(!checkpoints.Load().checkpoint, "an empty folder has no checkpoint");
  train(net, optimizer, 0, 3);
  net->named_buffers()["seen"].fill_(41);
  dtrun::SaveOptions what;
  what.step = 3;
  what.metadata["epoch"] = "1";
  const Tensor saved = Flat(net->parameters()).clone();
  checkpoints.StartSave(what);
  net->named_buffers()["seen"].fill_(0);
  train(net, optimizer, 3, 6);
  checkpoints.Wait();

  // Continued without sharded state, from other values.
  Net other = MakeNet();
  other->register_buffer("seen", torch::zeros({}, torch::kLong));
  {
    torch::NoGradGuard no_grad;
    for (const Tensor& parameter : other->parameters()) parameter.zero_();
  }
  const auto plain = MakeAdam(TwoGroups(other));
  DistributedOptimizer beside(world, *plain, *other);
  dtrun::CheckpointOptions read_only;
  read_only.read_only = true;
  dtrun::torch::CheckpointManager reader(world, folder.path(), *other, beside, read_only);
  const dtrun::Loaded loaded = reader.Load();
  Expect(loaded.checkpoint && loaded.checkpoint->step == 3, "the step of the checkpoint");
  Expect(loaded.checkpoint->metadata == dtrun::Metadata{{"epoch", "1"}}, "its metadata");
  Expect(other->named_buffers()["seen"].item<int64_t>() == 41, "its buffer");
  train(other, beside, 3, 6);
  Expect(
      torch::equal(Flat(net->parameters()), Flat(other->parameters())),
      "the bits of a training without a break");

  // Loaded by another number of ranks: each alone.
  std::optional<Communicator> alone = world.Split(world.rank());
  Net single = MakeNet();
  single->register_buffer("seen", torch::zeros({}, torch::kLong));
  const auto its_adam = MakeAdam(TwoGroups(single));
  dtrun::torch::CheckpointManager of_one(*alone, folder.path(), *single, *its_adam, read_only);
  of_one.Load();
  Expect(torch::equal(saved, Flat(single->parameters())), "the values on one rank");
  Expect(its_adam->state().size() == 6, "the state of all parameters on one rank");

  // Another model or optimizer is refused, and nothing changes.
  torch::nn::Linear small(3, 2);
  torch::optim::SGD of_small(small->parameters(), 0.1);
  dtrun::torch::CheckpointManager wrong(world, folder.path(), *small, of_small, read_only);
  const Tensor before = Flat(small->parameters()).clone();
  ExpectError([&] { wrong.Load(); }, "conv.weight");
  Expect(torch::equal(before, Flat(small->parameters())), "nothing was loaded");
  torch::optim::Adam one_group(other->parameters());
  dtrun::torch::CheckpointManager mixed(world, folder.path(), *other, one_group, read_only);
  const Tensor trained = Flat(other->parameters()).clone();
  ExpectError([&] { mixed.Load(); }, "has the state of another optimizer: ");
  Expect(torch::equal(trained, Flat(other->parameters())), "nothing was loaded");
}

void RefusedJoin(Communicator& world) {
  Net net = MakeNet();
  torch::optim::SGD inner = Sgd(*net);
  DistributedOptions options;
  options.op = ReduceOp::kAdasum;
  DistributedOptimizer adasum(world, inner, *net, options);
  ExpectError([&] { adasum.Join(); }, "Join(): op is adasum; expected average or sum");
  DistributedOptimizer optimizer(world, inner, *net);
  const auto scope = optimizer.NoSync();
  ExpectError([&] { optimizer.Join(); }, "step() inside a NoSync scope");
}

}  // namespace

Stories ModelStories() {
  return {
      {"collectives", Collectives},
      {"refused_collectives", RefusedCollectives},
      {"sync_batch_norms", SyncedBatchNorms},
      {"sync_batch_norm", SyncBatchNormModule},
      {"refused_batch_norms", RefusedBatchNorms},
      {"uneven", [](Communicator& world) { Uneven(world, ReduceOp::kAverage); }},
      {"uneven_sum", [](Communicator& world) { Uneven(world, ReduceOp::kSum); }},
      {"refused_join", RefusedJoin},
      {"sparse", SparseGradients},
      {"sparse_alone", SparseAlone},
      {"refused_sparse", RefusedSparse},
      {"sharded", ShardedState},
      {"refused_sharded", RefusedSharded},
      {"checkpoints", Checkpoints},
  };
}

}  // namespace torch_stories
