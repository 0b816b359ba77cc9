#ifndef DTRUN_DETAIL_TORCH_SHARDED_H_
#define DTRUN_DETAIL_TORCH_SHARDED_H_

#include <dtrun/detail/torch_hooks.h>
#include <dtrun/detail/torch_tensors.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtrun {
namespace torch {
namespace internal {
class ShardedTensors;
}  // namespace internal

/// An optimizer of LibTorch whose state is spread over the ranks (ZeRO, stage 1: Rajbhandari et
/// al., 2020). Each rank has the state of its own parameters and updates these; then all ranks get
/// the new values. With Adam on 8 ranks, a rank holds an eighth of the moments. The parameters are
/// the same bits as without this class.
///
///   using Groups = std::vector<torch::optim::OptimizerParamGroup>;
///   dtrun::torch::ShardedOptimizer adam(job.world(), Groups{model->parameters()}, [](Groups mine)
///   {
///     return std::make_unique<torch::optim::Adam>(mine, torch::optim::AdamOptions(1e-3));
///   });
///   dtrun::torch::DistributedOptimizer optimizer(job.world(), adam, *model);
///
/// A parameter is not divided: the largest go first, each to the rank with the fewest elements so
/// far. An optimizer that looks at several parameters at once would compute another step here.
///
/// The groups of this object count, also for schedulers. `save` needs Collect before. What it saves
/// is what the optimizer without this class would save, so that `load` and that optimizer's `load`
/// take both, with any number of ranks. Not thread-safe. On CPUs and GPUs.
class ShardedOptimizer : public ::torch::optim::Optimizer, public internal::StepsTogether {
 public:
  /// The groups of an optimizer.
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;
  /// Makes the optimizer of some parameters. It is called several times, with as many groups as the
  /// constructor gets; groups may be empty.
  using Make = std::function<std::unique_ptr<::torch::optim::Optimizer>(const Groups&)>;

  /// Collective: all ranks pass the same groups. kMismatch names the first parameter that differs,
  /// and the ranks; kInvalidArgument: a parameter is listed twice, or `make` returns null.
  ShardedOptimizer(Communicator& communicator, const Groups& groups, const Make& make)
      : ShardedOptimizer(communicator, groups, make, DealTo(communicator.size(), groups)) {}

  /// Updates the parameters. The gradients are the same on all ranks: a DistributedOptimizer around
  /// this object calls it after it has reduced them. Collective.
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss;
    if (closure) {
      at::AutoGradMode enable_grad(true);
      loss = closure();
    }
    if (before_step_) before_step_();
    CopyOptions(param_groups_, inner_->param_groups());
    inner_->step();
    for (const Share& share : shares_) ShareValues(share);
    collected_.clear();
    return loss;
  }

  /// The optimizer of this rank's own parameters.
  ::torch::optim::Optimizer& inner() { return *inner_; }

  /// Collects the state of all ranks on rank `root`, for `save` there. Collective.
  void Collect(int root = 0) {
    const std::string mine = BytesOf(*inner_);
    const bool is_root = communicator_.rank() == root;
    const Counts sizes = communicator_.AllGatherCounts(mine.size());
    std::string all(is_root ? std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}) : 0, '\0');
    std::string sent = mine;
    communicator_.Gather(
        Buffer(sent.data(), sent.size(), DType::kU8), Buffer(all.data(), all.size(), DType::kU8),
        root, sizes);
    if (!is_root) return;
    const std::unique_ptr<::torch::optim::Optimizer> whole = make_(param_groups_);
    size_t begin = 0;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const auto part = make_(GroupsOf(rank, param_groups_));
      const size_t size = sizes[static_cast<size_t>(rank)];
      LoadBytes(*part, all.substr(begin, size));
      begin += size;
      MoveState(*part, *whole);
    }
    CopyOptions(param_groups_, whole->param_groups());
    collected_ = BytesOf(*whole);
  }

  /// Saves the state that Collect has brought to this rank. kInvalidArgument: no Collect since the
  /// last step, or on another rank.
  void save(::torch::serialize::OutputArchive& archive) const override {
    if (collected_.empty()) {
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "ShardedOptimizer: save without the state of all ranks; call "
          "Collect(root) on all ranks after the last step, and save on rank `root`");
    }
    const auto whole = make_(param_groups_);
    LoadBytes(*whole, collected_);
    whole->save(archive);
  }
  /// Loads a saved state of all parameters and keeps this rank's part. Local: all ranks load the
  /// same state.
  void load(::torch::serialize::InputArchive& archive) override {
    const auto whole = make_(param_groups_);
    whole->load(archive);
    inner_->state().clear();
    MoveState(*whole, *inner_);
    CopyOptions(whole->param_groups(), param_groups_);
    collected_.clear();
  }

 private:
  friend class internal::ShardedTensors;
  using Owners = std::vector<std::vector<int>>;  // the rank of each parameter, by group

  // The parameters of one type, which travel together.
  struct Share {
    at::ScalarType type;
    Counts counts;                              // elements by rank
    std::vector<std::vector<Tensor>> of_ranks;  // by rank
  };

  ShardedOptimizer(
      Communicator& communicator, const Groups& groups, const Make& make, const Owners& owners)
      : ShardedOptimizer(
            communicator, groups, make, owners,
            Made(make, Dealt(groups, owners, communicator.rank()))) {}
  ShardedOptimizer(
      Communicator& communicator, const Groups& groups, const Make& make, const Owners& owners,
      std::unique_ptr<::torch::optim::Optimizer> inner)
      : Optimizer(WithOptions(groups, *inner), inner->defaults().clone()),
        communicator_(communicator.Duplicate()),
        make_(make),
        owners_(owners),
        inner_(std::move(inner)) {
    std::vector<std::string> lines;
    for (const auto& group : groups)
      for (const Tensor& parameter : group.params())
        lines.push_back(internal::Text(parameter.scalar_type(), parameter.sizes()));
    internal::AgreeOn(communicator_, "sharded_optimizer", lines);
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t k = 0; k < groups[g].params().size(); ++k)
        ShareOf(groups[g].params()[k])
            .of_ranks[static_cast<size_t>(owners[g][k])]
            .push_back(groups[g].params()[k]);
    for (Share& share : shares_)
      for (const std::vector<Tensor>& parameters : share.of_ranks) {
        uint64_t count = 0;
        for (const Tensor& parameter : parameters)
          count += static_cast<uint64_t>(parameter.numel());
        share.counts.push_back(count);
      }
  }

  static std::unique_ptr<::torch::optim::Optimizer> Made(const Make& make, const Groups& groups) {
    auto made = make(groups);
    if (made != nullptr) return made;
    internal::Refuse(ErrorCode::kInvalidArgument, "ShardedOptimizer: `make` returned null");
  }

  static Owners DealTo(int ranks, const Groups& groups) {
    struct Place {
      size_t group, k;
      int64_t elements;
    };
    std::vector<Place> places;
    std::vector<const at::TensorImpl*> seen;
    Owners owners;
    for (size_t g = 0; g < groups.size(); ++g) {
      owners.emplace_back(groups[g].params().size());
      for (size_t k = 0; k < groups[g].params().size(); ++k) {
        const Tensor& parameter = groups[g].params()[k];
        places.push_back({g, k, parameter.numel()});
        seen.push_back(parameter.unsafeGetTensorImpl());
      }
    }
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) {
      internal::Refuse(
          ErrorCode::kInvalidArgument,
          "ShardedOptimizer: a parameter is listed twice in the groups");
    }
    std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return a.elements > b.elements;
    });
    std::vector<int64_t> elements(static_cast<size_t>(ranks));
    for (const Place& place : places) {
      const auto least = std::min_element(elements.begin(), elements.end());
      *least += place.elements;
      owners[place.group][place.k] = static_cast<int>(least - elements.begin());
    }
    return owners;
  }

  // The groups with the parameters of one rank only.
  static Groups Dealt(const Groups& groups, const Owners& owners, int rank) {
    Groups dealt;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<Tensor> own;
      for (size_t k = 0; k < groups[g].params().size(); ++k)
        if (owners[g][k] == rank) own.push_back(groups[g].params()[k]);
      dealt.emplace_back(std::move(own));
      if (groups[g].has_options()) dealt.back().set_options(groups[g].options().clone());
    }
    return dealt;
  }
  Groups GroupsOf(int rank, const Groups& groups) const { return Dealt(groups, owners_, rank); }

  // The groups with the options that the optimizer of some parameters gave them.
  static Groups WithOptions(Groups groups, const ::torch::optim::Optimizer& made) {
    CopyOptions(made.param_groups(), groups);
    return groups;
  }
  static void CopyOptions(const Groups& from, Groups& to) {
    for (size_t g = 0; g < to.size() && g < from.size(); ++g)
      to[g].set_options(from[g].options().clone());
  }

  Share& ShareOf(const Tensor& parameter) {
    for (Share& share : shares_)
      if (share.type == parameter.scalar_type()) return share;
    shares_.push_back({parameter.scalar_type(), {}, {}});
    shares_.back().of_ranks.resize(static_cast<size_t>(communicator_.size()));
    return shares_.back();
  }

  // Brings the values of each rank's parameters to all ranks.
  void ShareValues(const Share& share) {
    ::torch::NoGradGuard no_grad;
    const auto rank = static_cast<size_t>(communicator_.rank());
    std::vector<Tensor> mine;
    at::TensorOptions options;
    for (const std::vector<Tensor>& parameters : share.of_ranks)
      if (!parameters.empty()) options = parameters[0].options().requires_grad(false);
    for (const Tensor& parameter : share.of_ranks[rank]) mine.push_back(parameter.reshape({-1}));
    const Tensor flat = mine.empty() ? ::torch::empty({0}, options) : ::torch::cat(mine);
    const internal::Staged staged("sharded_optimizer: the parameters", flat);
    const uint64_t total = std::accumulate(share.counts.begin(), share.counts.end(), uint64_t{0});
    const Tensor all = ::torch::empty({static_cast<int64_t>(total)}, options);
    staged.lane().Enter();  // after the allocation of the result
    communicator_.AllGather(
        staged.buffer(), staged.lane().BufferOf(all.data_ptr(), all.numel(), staged.buffer().dtype),
        share.counts);
    staged.lane().Leave();
    int64_t begin = 0;
    for (size_t r = 0; r < share.of_ranks.size(); ++r)
      for (const Tensor& parameter : share.of_ranks[r]) {
        if (r != rank)
          Tensor(parameter).copy_(all.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
        begin += parameter.numel();
      }
  }

  static std::string BytesOf(const ::torch::optim::Optimizer& optimizer) {
    ::torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    return stream.str();
  }
  static void LoadBytes(::torch::optim::Optimizer& optimizer, const std::string& bytes) {
    ::torch::serialize::InputArchive archive;
    internal::OpenState(optimizer, bytes, archive);
    optimizer.load(archive);
  }

  // LibTorch 1.13 finds the state of a parameter by the text of its address, later versions by the
  // address.
  template <typename States>
  static auto KeyOf(const States&, const Tensor& parameter) {
    if constexpr (std::is_same_v<typename States::key_type, std::string>) {
      return internal::Text(parameter.unsafeGetTensorImpl());
    } else {
      return static_cast<typename States::key_type>(parameter.unsafeGetTensorImpl());
    }
  }

  // Moves the state of all parameters that both optimizers have.
  static void MoveState(::torch::optim::Optimizer& from, ::torch::optim::Optimizer& to) {
    auto& states = from.state();
    const auto move = [&](const Tensor& parameter) {
      const auto found = states.find(KeyOf(states, parameter));
      if (found != states.end()) to.state()[KeyOf(states, parameter)] = std::move(found->second);
    };
    const Groups& groups = to.param_groups();
    for (const auto& group : groups)
      for (const Tensor& parameter : group.params()) move(parameter);
    for (auto state = states.begin(); state != states.end();)
      state = state->second == nullptr ? states.erase(state) : std::next(state);
  }

  Communicator communicator_;
  Make make_;
  Owners owners_;
  std::unique_ptr<::torch::optim::Optimizer> inner_;
  std::vector<Share> shares_;
  std::string collected_;              // the state of all ranks, as bytes
  std::function<void()> before_step_;  // Elastic waits for its copies
};

}  // namespace torch
}  // namespace dtrun

#endif  // DTRUN_DETAIL_TORCH_SHARDED_H_
