// A program that uses an installed dtrun. It calls functions that the headers compile into the
// program (strings, vectors, exceptions, virtual functions) on all ranks. It prints one line if all
// results are right.
#include <dtrun/dtrun.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

// Throws an exception of the library's own type if an expectation is not met.
void Expect(bool met, const std::string& what) {
  if (!met) throw dtrun::Error(dtrun::ErrorCode::kSystem, "expected " + what);
}

class Sgd : public dtrun::Optimizer {
 public:
  explicit Sgd(int rank) : weights_{static_cast<float>(rank), 1} {}
  std::vector<dtrun::Parameter>& parameters() override { return parameters_; }
  std::vector<dtrun::NamedBuffer> state() override { return {{"steps", {&steps_, 1}}}; }
  void Step() override {
    ++steps_;
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= gradient()[i];
  }
  float* gradient() { return static_cast<float*>(parameters_[0].gradient.data); }
  const std::vector<float>& weights() const { return weights_; }

 private:
  std::vector<float> weights_;
  int64_t steps_ = 0;
  std::vector<dtrun::Parameter> parameters_{{"weights", {weights_.data(), weights_.size()}, {}}};
};

void UseContext(const dtrun::Context& job) {
  Expect(job.hosts().size() == 1 && !job.hosts()[0].name.empty(), "one host with a name");
  Expect(job.local_size() == job.size() && job.threads() >= 1, "ranks of one host, with threads");
}

void UseCollectives(dtrun::Communicator& world) {
  const auto size = static_cast<uint64_t>(world.size());
  const dtrun::Memory memory = world.Allocate(sizeof(double));
  *static_cast<double*>(memory.data()) = world.rank() + 1;
  world.AllReduce(dtrun::Buffer(static_cast<double*>(memory.data()), 1), dtrun::ReduceOp::kMax);
  Expect(*static_cast<double*>(memory.data()) >= world.size(), "the largest number of all ranks");

  const std::string mine(static_cast<size_t>(world.rank()), 'x');
  const std::vector<std::string> texts = dtrun::AllGatherBytes(world, mine);
  Expect(texts.size() == size && texts.back().size() == size - 1, "the texts of all ranks");
  Expect(world.Subset({0}).has_value() == (world.rank() == 0), "a communicator of rank 0 alone");

  std::string told;
  try {
    world.Broadcast(dtrun::Buffer(memory.data(), 1, dtrun::DType::kF64), world.size());
  } catch (const dtrun::Error& error) {
    if (error.code() == dtrun::ErrorCode::kInvalidArgument) told = error.what();
  }
  Expect(told.find("broadcast: root is") == 0, "an error that names the root, got '" + told + "'");
}

void UseOptimizer(dtrun::Communicator& world) {
  Sgd sgd(world.rank());
  dtrun::DistributedOptimizer optimizer(world, sgd);
  dtrun::BroadcastParameters(world, sgd.parameters());
  dtrun::BroadcastOptimizerState(world, sgd);
  sgd.gradient()[0] = static_cast<float>(2 * world.rank());
  sgd.gradient()[1] = 1;
  optimizer.MarkReady(0);
  optimizer.Step();
  const float average = static_cast<float>(world.size() - 1);
  Expect(sgd.weights() == std::vector<float>{-average, 0}, "a step along the average gradient");
}

}  // namespace

int main() try {
  dtrun::Context job = dtrun::Init({{"bucket_bytes", "4096"}});
  UseContext(job);
  UseCollectives(job.world());
  UseOptimizer(job.world());
  if (job.rank() == 0) std::printf("%d: %s\n", job.size(), job.world().backend().c_str());
  job.Shutdown();
  return 0;
} catch (const dtrun::Error& error) {
  std::fprintf(stderr, "consumer: %s\n", error.what());
  return 1;
}
