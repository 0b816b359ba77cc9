// Step first enqueues the values of the step (EnqueueBegin). EnqueueRest then enqueues the work
// that is the same in every step: gather, forward, loss, backward, sum over the ranks, update. The
// first step enqueues the kernels one by one. Later steps launch a CUDA graph of this work. If the
// sum goes through host memory, the graph ends before the sum, and a second graph has the update.

#include "models/gpu/gpu_replica.h"

#include <dtrun/device_memory.h>
#include <dtrun/error.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "gpu/gpu_device.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "models/gpu/device_network.h"
#include "models/gpu/image_feed.h"
#include "models/gpu/kernel_args.h"
#include "models/gpu/network_plan.h"
#include "models/message_text.h"

namespace dtrun::models {
namespace {

void CheckDtype(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text("a network on a GPU computes in f32, bf16 or f16, got ", NameOf(dtype)));
}

class CudaReplica : public GpuReplica {
 public:
  CudaReplica(Sequential& model, Communicator& world, const GpuOptions& options, NetworkPlan plan)
      : model_(model),
        world_(world),
        options_(options),
        stream_(gpu::Device::Get(options.device)),
        network_(
            stream_, std::move(plan),
            {.dtype = options.dtype,
             .tf32 = options.tf32 ? Tf32::kAllowed : Tf32::kOff,
             .selection = options.first_algorithms ? Selection::kFirst : Selection::kFastest,
             .rows = static_cast<uint32_t>(options.rows),
             .workspace_bytes = options.workspace_bytes}),
        counter_(device(), sizeof(uint32_t)),
        state_(device(), sizeof(StepState)),
        test_state_(device(), sizeof(StepState)),
        losses_(device(), std::max<uint64_t>(options.steps_per_epoch, 1) * sizeof(float)) {
    const uint64_t bytes = count() * sizeof(float);
    for (gpu::DeviceMemory& slot : slots_)
      if (&slot == &slots_[0] ? HasFirstSlot() : is_adam())
        slot = gpu::DeviceMemory(device(), bytes);
    StepState fresh;
    fresh.scale = static_cast<float>(is_f16() ? options.initial_loss_scale : 1);
    WriteBytes(stream_, state_, 0, &fresh, sizeof fresh);
    fresh.scale = 1;
    WriteBytes(stream_, test_state_, 0, &fresh, sizeof fresh);
    SetParameters();
  }

  bool LoadTrainingData(const ByteImages& data) override { return Load(data, train_); }
  bool LoadTestData(const ByteImages& data) override { return Load(data, test_); }

  void SetParameters() override {
    std::vector<NamedBuffer> values;
    for (const Parameter& parameter : model_.parameters())
      values.push_back({parameter.name, parameter.value});
    WriteBlock(stream_, network_.plan(), network_.values(), values);
    network_.EnqueueCopy();
    stream_.Synchronize();
  }

  void GetParameters(const std::vector<NamedBuffer>& values) override {
    ReadBlock(stream_, network_.plan(), network_.values(), values);
    CheckSums();
  }

  void SetState(const std::vector<NamedBuffer>& state) override {
    const uint64_t* updates = UpdatesIn(state);
    if (updates != nullptr)
      WriteBytes(stream_, state_, offsetof(StepState, updates), updates, sizeof *updates);
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::vector<NamedBuffer> of_slot = SlotIn(state, slot);
      if (!of_slot.empty()) WriteBlock(stream_, network_.plan(), slots_[slot].as<float>(), of_slot);
    }
    stream_.Synchronize();
  }

  void GetState(const std::vector<NamedBuffer>& state) override {
    uint64_t* updates = UpdatesIn(state);
    if (updates != nullptr) *updates = ReadState().updates;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const std::vector<NamedBuffer> of_slot = SlotIn(state, slot);
      if (!of_slot.empty()) ReadBlock(stream_, network_.plan(), slots_[slot].as<float>(), of_slot);
    }
    CheckSums();
  }

  std::vector<std::vector<float>> Gradients() override {
    std::vector<std::vector<float>> gradients;
    std::vector<NamedBuffer> views;
    for (const Parameter& parameter : model_.parameters())
      gradients.emplace_back(parameter.value.count);
    for (std::vector<float>& each : gradients)
      views.push_back({"", Buffer(each.data(), each.size())});
    ReadBlock(stream_, network_.plan(), network_.gradients(), views);
    CheckSums();
    const float unscale = is_f16() ? ReadState().unscale : 1;
    for (std::vector<float>& each : gradients)
      for (float& value : each) value *= unscale;
    return gradients;
  }

  void SetOrder(std::span<const uint32_t> order) override {
    if (train_ == nullptr || order.size() > CountOf(train_)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("an order of ", order.size(), " examples, expected at most ", CountOf(train_)));
    }
    train_->SetOrder(order);
  }

  void Step(const GpuStep& step) override {
    CheckStep(step);
    if (world_.size() > 1 && !summed_) ShareGradients();
    EnqueueBegin(step);
    if (step.next_examples > 0) train_->Expect({step.next_example, step.next_examples});
    EnqueueRest();
    train_->Used();
  }

  GpuMetrics TakeMetrics() override { return Take(state_); }

  std::vector<double> Losses(uint64_t wanted) override {
    std::vector<float> losses(wanted);
    const gpu::DeviceScope scope(device());
    gpu::CopyToHost(losses.data(), losses_.address(), wanted * sizeof(float), stream_.get());
    stream_.Synchronize();
    CheckSums();
    return {losses.begin(), losses.end()};
  }

  LossScale loss_scale() override {
    const StepState state = ReadState();
    CheckSums();
    return {static_cast<double>(state.scale), state.good_steps, state.skipped_steps};
  }

  void SetLossScale(const LossScale& scale) override {
    if (!is_f16()) return;
    StepState state = ReadState();
    state.scale = static_cast<float>(scale.scale);
    state.good_steps = static_cast<uint32_t>(scale.good_steps);
    state.skipped_steps = scale.skipped_steps;
    WriteBytes(stream_, state_, 0, &state, sizeof state);
  }

  GpuMetrics Evaluate(uint64_t first, uint64_t wanted) override {
    const uint64_t end = first + wanted;
    if (end > CountOf(test_)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text("test examples ", first, " to ", end, ", there are ", CountOf(test_)));
    }
    while (first < end) {
      const uint64_t examples = std::min(options_.rows, end - first);
      StepValues values;
      values.examples = static_cast<uint32_t>(examples);
      EnqueueBegin(test_->Take({first, examples}), values, test_state_, false);
      first += examples;
      if (first < end) test_->Expect({first, std::min(options_.rows, end - first)});
      EnqueueGather(test_state_);
      test_->Used();
      network_.EnqueueForward(DeviceNetwork::Mode::kTest, test_state_.as<StepState>());
      network_.EnqueueLoss(DeviceNetwork::Mode::kTest, test_state_.as<StepState>(), nullptr);
    }
    return Take(test_state_);
  }

  double exposed_seconds() const override { return exposed_seconds_; }
  std::string device_name() const override { return device().name(); }

 private:
  const gpu::Device& device() const { return stream_.device(); }
  uint64_t count() const { return network_.plan().parameter_count; }
  bool is_adam() const { return options_.optimizer.kind == GpuOptimizer::Kind::kAdam; }
  bool is_f16() const { return options_.dtype == DType::kF16; }
  bool HasFirstSlot() const { return is_adam() || options_.optimizer.momentum > 0; }

  RateRule Rates() const {
    if (!is_adam()) return {};
    return {options_.optimizer.beta1, options_.optimizer.beta2};
  }

  // Throws if a sum has failed. Results behind a failed sum contain only this rank's part.
  void CheckSums() {
    if (world_.size() > 1) CheckDeviceCollectives(world_);
  }

  StepState ReadState() {
    StepState state;
    const gpu::DeviceScope scope(device());
    gpu::CopyToHost(&state, state_.address(), sizeof state, stream_.get());
    stream_.Synchronize();
    return state;
  }

  GpuMetrics Take(const gpu::DeviceMemory& memory) {
    struct Sums {
      double loss_sum;
      uint64_t correct, examples;
    } sums{};
    constexpr size_t kOffset = offsetof(StepState, loss_sum);
    static_assert(offsetof(StepState, examples) - kOffset == offsetof(Sums, examples));
    const gpu::DeviceScope scope(device());
    gpu::CopyToHost(&sums, memory.address() + kOffset, sizeof sums, stream_.get());
    gpu::Fill(memory.address() + kOffset, 0, sizeof sums, stream_.get());
    stream_.Synchronize();
    CheckSums();
    return {sums.loss_sum, sums.correct, sums.examples};
  }

  uint64_t* UpdatesIn(const std::vector<NamedBuffer>& state) const {
    for (const NamedBuffer& each : state)
      if (is_adam() && each.name == "adam.step") return static_cast<uint64_t*>(each.buffer.data);
    return nullptr;
  }

  // The buffers of a slot, in the order of the parameters. Empty if the optimizer has no such slot.
  std::vector<NamedBuffer> SlotIn(const std::vector<NamedBuffer>& state, size_t slot) const {
    if (!slots_[slot]) return {};
    const std::string name = !is_adam() ? "sgd.velocity/" : slot == 0 ? "adam.m/" : "adam.v/";
    std::vector<NamedBuffer> found;
    for (const Parameter& parameter : model_.parameters()) {
      const auto of_parameter = std::find_if(
          state.begin(), state.end(),
          [&](const NamedBuffer& each) { return each.name == name + parameter.name; });
      if (of_parameter == state.end()) {
        throw Error(
            ErrorCode::kInvalidArgument,
            Text("the optimizer's state has no '", name, parameter.name, "'"));
      }
      found.push_back(*of_parameter);
    }
    return found;
  }

  static uint64_t CountOf(const std::unique_ptr<ImageFeed>& feed) {
    return feed == nullptr ? 0 : feed->count();
  }

  // Returns true if the data is on the device.
  bool Load(const ByteImages& data, std::unique_ptr<ImageFeed>& to) {
    const size_t pixels = network_.plan().input.count();
    if (data.pixels != pixels || data.count >= uint64_t{1} << 32) {
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(data.count, " images of ", data.pixels, " pixels, expected below 2^32 of ", pixels));
    }
    to.reset();
    // The first step allocates other memory for the gradients (ShareGradients).
    const uint64_t later = world_.size() > 1 ? count() * sizeof(float) : 0;
    const bool resident = IsResident(device(), options_, data.count, pixels, later);
    to =
        resident ? MakeResidentFeed(stream_, data) : MakeStreamedFeed(stream_, data, options_.rows);
    return resident;
  }

  void CheckStep(const GpuStep& step) const {
    const uint64_t all = CountOf(train_), slots = std::max<uint64_t>(options_.steps_per_epoch, 1);
    const auto check = [&](uint64_t first, uint64_t examples) {
      if (train_ != nullptr && examples <= options_.rows && first + examples <= all &&
          step.loss_slot < slots)
        return;
      throw Error(
          ErrorCode::kInvalidArgument,
          Text(
              "step ", step.loss_slot, " of an epoch, examples ", first, " to ", first + examples,
              "; expected at most ", options_.rows, " examples below ", all, ", and at most ",
              options_.steps_per_epoch, " steps"));
    };
    check(step.first_example, step.examples);
    if (step.next_examples > 0) check(step.next_example, step.next_examples);
  }

  void EnqueueBegin(const GpuStep& step) {
    StepValues values;
    values.step = step.step;
    values.first_position = static_cast<uint32_t>(step.first_position);
    values.examples = static_cast<uint32_t>(step.examples);
    values.loss_factor = static_cast<float>(1.0 / static_cast<double>(step.global_batch));
    values.loss_slot = static_cast<uint32_t>(step.loss_slot);
    values.rate = static_cast<float>(step.learning_rate);
    EnqueueBegin(train_->Take({step.first_example, step.examples}), values, state_, !is_f16());
  }

  void EnqueueBegin(
      const DeviceBatch& batch, StepValues values, const gpu::DeviceMemory& state, bool advances) {
    values.images = batch.images;
    values.labels = batch.labels;
    values.order = batch.order;
    Launch(
        device(), "dtrun_begin_step", {1, 1}, stream_.get(),
        BeginStepArgs{state.as<StepState>(), values, Rates(), advances ? 1u : 0u});
  }

  void EnqueueGather(const gpu::DeviceMemory& state) {
    const auto rows = static_cast<uint32_t>(options_.rows);
    const auto pixels = static_cast<uint32_t>(network_.plan().input.count());
    const uint64_t items = uint64_t{rows} * (pixels % 16 == 0 ? pixels / 16 : pixels);
    Launch(
        device(), Text("dtrun_gather_", NameOf(options_.dtype)), {Blocks(items), 256},
        stream_.get(),
        GatherArgs{state.as<StepState>(), network_.inputs(), network_.wanted(), rows, pixels});
  }

  uint32_t Blocks(uint64_t items) const {
    return gpu::BlocksFor(items, 256, 16 * static_cast<uint32_t>(device().multiprocessors()));
  }

  void EnqueueCompute() {
    EnqueueGather(state_);
    network_.EnqueueForward(DeviceNetwork::Mode::kTraining, state_.as<StepState>());
    network_.EnqueueLoss(
        DeviceNetwork::Mode::kTraining, state_.as<StepState>(), losses_.as<float>());
    network_.EnqueueBackward();
  }

  // Enqueues the work that is the same in every step.
  void EnqueueRest() {
    // The first step loads kernels and makes the resources that the sum needs. A graph cannot
    // contain this work.
    const bool captures = options_.graph && steps_++ > 0;
    if (captures && !compute_graph_) {
      compute_graph_ = gpu::Graph(stream_, [&] {
        EnqueueCompute();
        if (through_host_) return;
        EnqueueSum();
        EnqueueUpdate();
      });
      if (through_host_) update_graph_ = gpu::Graph(stream_, [&] { EnqueueUpdate(); });
    }
    captures ? compute_graph_.Launch(stream_.get()) : EnqueueCompute();
    if (captures && !through_host_) return;
    through_host_ ? SumThroughHost() : EnqueueSum();
    captures ? update_graph_.Launch(stream_.get()) : EnqueueUpdate();
  }

  // Collective. Moves the gradients to memory that the other ranks can access.
  void ShareGradients() {
    const uint64_t bytes = count() * sizeof(float);
    stream_.Synchronize();
    summed_.emplace(AllocateOnDevice(world_, options_.device, bytes));
    network_.SetGradients(static_cast<float*>(summed_->data()));
    through_host_ = DeviceBackend(world_, options_.device) == "host_staged";
    // Freeing the old gradients may wait for all kernels of the process. No kernel of another rank
    // may wait for this rank meanwhile, so no rank goes on before all have freed.
    world_.Barrier();
  }

  void EnqueueSum() {
    if (world_.size() == 1) return;
    Buffer gradients(network_.gradients(), count());
    gradients.device = options_.device;
    gradients.stream = stream_.get();
    world_.AllReduce(gradients);
  }

  // Waits for the stream, then for the other ranks. Only the second wait is exposed.
  void SumThroughHost() {
    stream_.Synchronize();
    const auto start = std::chrono::steady_clock::now();
    EnqueueSum();
    exposed_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void EnqueueUpdate() {
    const GpuOptimizer& o = options_.optimizer;
    const uint64_t values = count();
    if (is_f16()) {
      Launch(
          device(), "dtrun_check_gradients", {Blocks(values / 4), 256}, stream_.get(),
          CheckGradientsArgs{
              network_.gradients(), state_.as<StepState>(), counter_.as<uint32_t>(), values,
              Rates(), ScaleRule{.growth_interval = options_.loss_scale_growth}});
    }
    const gpu::Shape shape{Blocks(values / 4), 256};
    if (is_adam()) {
      Launch(
          device(), Text("dtrun_adam_", NameOf(options_.dtype)), shape, stream_.get(),
          AdamArgs{
              network_.values(), network_.gradients(), slots_[0].as<float>(), slots_[1].as<float>(),
              network_.copy(), state_.as<StepState>(), values, static_cast<float>(1 - o.beta1),
              static_cast<float>(1 - o.beta2), static_cast<float>(o.epsilon)});
      return;
    }
    Launch(
        device(), Text("dtrun_sgd_", NameOf(options_.dtype)), shape, stream_.get(),
        SgdArgs{
            network_.values(), network_.gradients(), slots_[0].as<float>(), network_.copy(),
            state_.as<StepState>(), values, static_cast<float>(o.momentum),
            static_cast<float>(o.weight_decay), o.nesterov ? 1u : 0u});
  }

  Sequential& model_;
  Communicator& world_;
  GpuOptions options_;
  gpu::Stream stream_;
  DeviceNetwork network_;
  gpu::DeviceMemory counter_, state_, test_state_, losses_;
  std::vector<gpu::DeviceMemory> slots_{2};
  std::optional<Memory> summed_;  // the gradients, if the world has more than one rank
  bool through_host_ = false;     // the sum goes through host memory and waits
  std::unique_ptr<ImageFeed> train_, test_;
  gpu::Graph compute_graph_;  // the step, up to a sum through host memory
  gpu::Graph update_graph_;
  uint64_t steps_ = 0;
  double exposed_seconds_ = 0;
};

}  // namespace

std::unique_ptr<GpuReplica> GpuReplica::Make(
    Sequential& model, Communicator& world, const GpuOptions& options) {
  CheckDtype(options.dtype);
  if (options.rows == 0 || options.rows >= uint64_t{1} << 31) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("a network on a GPU for ", options.rows, " examples, expected 1 or more, below 2^31"));
  }
  NetworkPlan plan = PlanNetwork(model, options.seed);
  gpu::SetMemoryLimit(options.memory_bytes);
  CheckRoom(gpu::Device::Get(options.device), plan, options);
  return std::make_unique<CudaReplica>(model, world, options, std::move(plan));
}

}  // namespace dtrun::models
