// For each tensor, the combination of the ranks in pairs is a weighted sum of the ranks' inputs
// (AdasumTree computes the weights):
//
//   1. The tensors are cut into blocks. Each rank gets a share of the blocks of all ranks' inputs.
//   2. A level of pairs needs the products a.a, b.b and a.b of its groups, summed over blocks.
//      Each rank computes the products of its share with the weights so far.
//   3. The ranks exchange the products. Then each rank knows the weights of the next level.
//   4. After the last level, each rank computes its share of the result.
//   5. All ranks get all shares of the result.
//
// The paper halves the vector and doubles the distance recursively. This code makes all halvings at
// once. The traffic is the same, and nothing is rounded between the levels.
//
// The shares come in one of three ways, the same on all ranks:
//
//   whole    up to kWholeBytes: an all_gather brings all inputs to all ranks, and each rank
//            computes everything
//   reached  the ranks reach each other's buffers, and read and write them in place
//   sent     otherwise: an all_to_all brings the inputs, and an all_gather the result
//
// The operations use a duplicate of the communicator, one operation after the other.

#include "ops/communicator/adasum.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "ops/reduce/reduce.h"

namespace dtrun::ops {
namespace {

using base::Text;

// Sending an input of this size takes less time than another meeting of the ranks.
constexpr uint64_t kWholeBytes = 16 << 10;
// Results of this size or more are stored past the cache.
constexpr uint64_t kStreamingBytes = 8 << 20;

}  // namespace

bool AdasumTakes(int size) { return size > 0 && (size & (size - 1)) == 0; }
bool AdasumTakes(DType dtype) { return HasWeightedSums(dtype); }

// The state that all Adasum operations of a communicator share on this rank. Used under the
// engine's lock.
struct Adasum::Group {
  explicit Group(Communicator& of)
      : communicator(of.Duplicate()),
        members(std::make_shared<const Members>(communicator->members())) {}

  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<const Members> members;
  uint64_t started = 0, served = 0;  // operations; the communicator's thread counts `started`
  std::exception_ptr broken;  // the error that ended an operation midway: later ones fail with it
  std::unique_ptr<Memory> scratch;  // kept, because fresh pages cost more than a copy

  char* Scratch(uint64_t bytes) {
    if (scratch == nullptr || scratch->bytes() < bytes) scratch = AllocatePrivate(bytes);
    return static_cast<char*>(scratch->data());
  }
};

namespace {

class AdasumOperation : public Operation {
 public:
  AdasumOperation(
      std::shared_ptr<Adasum::Group> group, const Collective& whole, const Counts& tensors,
      Communicator::Reach reach)
      : Operation(group->members, ++group->started, CallOf(whole, group->communicator->rank())),
        group_(std::move(group)),
        whole_(whole),
        reach_(std::move(reach)),
        blocks_(CutIntoBlocks(tensors)),
        begins_(DealBlocks(blocks_, size())),
        tree_(size(), tensors.size()) {}

  Progress Advance() override {
    if (group_->broken) std::rethrow_exception(group_->broken);
    try {
      return AdvancePhase();
    } catch (const Error&) {
      part_.Abandon();
      group_->broken = std::current_exception();
      throw;
    }
  }
  std::vector<int> Missing() const override {
    return phase_ == Phase::kWaiting ? reach_.work.Missing() : part_.Missing();
  }
  void GiveUp() override { part_.Abandon(); }

 private:
  enum class Phase { kWaiting, kGetting, kTelling, kGiving };
  enum class Way { kWhole, kReached, kSent };

  int rank() const { return group_->communicator->rank(); }
  int size() const { return group_->communicator->size(); }
  uint64_t Size() const { return static_cast<uint64_t>(size()); }
  DType dtype() const { return whole_.input.dtype; }
  uint64_t element() const { return SizeOf(dtype()); }

  Progress AdvancePhase() {
    switch (phase_) {
      case Phase::kWaiting:
        if (group_->served + 1 != sequence() || !reach_.work.Done()) return Progress::kNone;
        StartGetting();
        return Progress::kSome;
      case Phase::kGetting:
        if (!part_.Done()) return Progress::kNone;
        SetMoving();
        return NextLevel();
      case Phase::kTelling:
        if (!part_.Done()) return Progress::kNone;
        tree_.Combine(blocks_, products_);
        return NextLevel();
      case Phase::kGiving:
        if (!part_.Done()) return Progress::kNone;
        return End();
    }
    return Progress::kNone;
  }

  // --- the ranks' inputs ---

  void StartGetting() {
    phase_ = Phase::kGetting;
    const Buffer& input = whole_.input;
    way_ = input.bytes() <= kWholeBytes                         ? Way::kWhole
           : reach_.buffers != nullptr && reach_.buffers->all() ? Way::kReached
                                                                : Way::kSent;
    first_ = way_ == Way::kWhole ? 0 : begins_[static_cast<size_t>(rank())];
    end_ = way_ == Way::kWhole ? blocks_.size() : begins_[static_cast<size_t>(rank()) + 1];
    const Range own = way_ == Way::kWhole ? Range{0, input.count} : ShareOfElements(rank());
    for (int r = 0; r < size() && way_ == Way::kReached; ++r) {
      inputs_.push_back(reach_.buffers->input(r) + own.begin * element());
      outputs_.push_back(reach_.buffers->output(r) + own.begin * element());
    }
    offset_ = own.begin;
    if (way_ == Way::kReached) return;
    char* const scratch = group_->Scratch(Size() * own.count * element());
    for (uint64_t r = 0; r < Size(); ++r) inputs_.push_back(scratch + r * own.count * element());
    outputs_.push_back(static_cast<char*>(whole_.output.data) + own.begin * element());
    const Buffer received(scratch, Size() * own.count, dtype());
    if (way_ == Way::kWhole) {
      part_ = group_->communicator->StartAllGather(input, received);
      return;
    }
    Counts sent;
    for (int r = 0; r < size(); ++r) sent.push_back(ShareOfElements(r).count);
    part_ = group_->communicator->StartAllToAll(
        input, received, std::move(sent), Counts(Size(), own.count));
  }

  // The elements of the blocks that were dealt to rank `r`.
  Range ShareOfElements(int r) const {
    const auto begin = FirstElement(begins_[static_cast<size_t>(r)]);
    return {begin, FirstElement(begins_[static_cast<size_t>(r) + 1]) - begin};
  }
  uint64_t FirstElement(size_t block) const {
    return block < blocks_.size() ? blocks_[block].first : whole_.input.count;
  }

  // --- levels ---

  Progress NextLevel() {
    while (!tree_.done()) {
      const auto pairs = static_cast<size_t>(tree_.pairs());
      products_.resize(blocks_.size() * pairs);
      for (size_t block = first_; block < end_; ++block)
        for (size_t pair = 0; pair < pairs; ++pair)
          products_[block * pairs + pair] = ProductsOf(blocks_[block], pair);
      if (way_ != Way::kWhole) {
        StartTelling(pairs);
        return Progress::kSome;
      }
      tree_.Combine(blocks_, products_);
    }
    Combine();
    return StartGiving();
  }

  Products ProductsOf(const TensorBlock& block, size_t pair) {
    const int group = tree_.group();
    const size_t first = pair * 2 * static_cast<size_t>(group);
    return ProductsOfSums(
        InputsOf(block) + first, tree_.weights(block.tensor) + first, group, block.count, dtype());
  }

  void StartTelling(size_t pairs) {
    static_assert(sizeof(Products) == 3 * sizeof(double));
    Counts counts;
    for (size_t r = 0; r < begins_.size() - 1; ++r)
      counts.push_back((begins_[r + 1] - begins_[r]) * pairs * 3);
    const Buffer all(&products_.data()->aa, products_.size() * 3);
    part_ = group_->communicator->StartAllGather(
        all.Slice(first_ * pairs * 3, (end_ - first_) * pairs * 3), all, std::move(counts));
    phase_ = Phase::kTelling;
  }

  // The addresses of a block's elements, by rank.
  const void* const* InputsOf(const TensorBlock& block) {
    at_.clear();
    for (const char* input : inputs_) at_.push_back(input + (block.first - offset_) * element());
    return at_.data();
  }

  // --- the result ---

  void Combine() {
    tree_.Scale(whole_.scale.before * whole_.scale.after);
    const Stores stores =
        whole_.output.bytes() >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
    std::vector<void*> outputs(outputs_.size());
    for (size_t b = first_; b < end_; ++b) {
      const TensorBlock& block = blocks_[b];
      for (size_t o = 0; o < outputs.size(); ++o)
        outputs[o] = outputs_[o] + (block.first - offset_) * element();
      WeightedSum(
          InputsOf(block), tree_.weights(block.tensor), size(), outputs.data(),
          static_cast<int>(outputs.size()), block.count, dtype(), stores);
    }
  }

  Progress StartGiving() {
    if (way_ == Way::kWhole) return End();
    phase_ = Phase::kGiving;
    if (way_ == Way::kReached) {
      part_ = group_->communicator->StartBarrier();
      return Progress::kSome;
    }
    Counts counts;
    for (int r = 0; r < size(); ++r) counts.push_back(ShareOfElements(r).count);
    const Range own = ShareOfElements(rank());
    part_ = group_->communicator->StartAllGather(
        whole_.output.Slice(own.begin, own.count), whole_.output, std::move(counts));
    return Progress::kSome;
  }

  Progress End() {
    ++group_->served;
    return Progress::kDone;
  }

  std::shared_ptr<Adasum::Group> group_;
  Collective whole_;
  Communicator::Reach reach_;
  std::vector<TensorBlock> blocks_;
  std::vector<size_t> begins_;  // by rank: the index of its first block; then the end
  AdasumTree tree_;
  Phase phase_ = Phase::kWaiting;
  Way way_ = Way::kWhole;
  Work part_;
  size_t first_ = 0, end_ = 0;       // the blocks that this rank computes
  uint64_t offset_ = 0;              // the first element of these blocks
  std::vector<const char*> inputs_;  // by rank: the address of element offset_
  std::vector<char*> outputs_;
  std::vector<Products> products_;
  std::vector<const void*> at_;
};

void CheckTensors(const Buffer& input, const Buffer& output, const Counts& tensors, int size) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, "adasum: " + text);
  };
  if (!AdasumTakes(size)) refuse(Text("there are ", size, " ranks; expected a power of two"));
  if (!AdasumTakes(input.dtype))
    refuse(Text("the input is of ", NameOf(input.dtype), "; expected f16, bf16, f32 or f64"));
  if (output.dtype != input.dtype || output.count != input.count)
    refuse(Text(
        "the output has ", output.count, " elements of ", NameOf(output.dtype), "; expected ",
        input.count, " of ", NameOf(input.dtype)));
  uint64_t sum = 0;
  for (const uint64_t count : tensors) sum += count;
  if (sum != input.count)
    refuse(Text("the tensors have ", sum, " elements, but the input ", input.count));
}

}  // namespace

Adasum::Adasum(Communicator& communicator, Engine& engine)
    : communicator_(communicator), engine_(engine), group_(std::make_shared<Group>(communicator)) {}

Adasum::~Adasum() = default;

Work Adasum::Start(Buffer input, Buffer output, Counts tensors, Scale scale) {
  CheckTensors(input, output, tensors, communicator_.size());
  const Collective whole{
      .kind = CollectiveKind::kAllReduce,
      .input = input,
      .output = output,
      .op = ReduceOp::kAdasum,
      .scale = scale};
  Communicator::Reach reach;
  if (communicator_.reaches_peers() && input.bytes() > kWholeBytes)
    reach = communicator_.StartReach(input, output, ReduceOp::kAdasum);
  return engine_.Start(std::make_unique<AdasumOperation>(group_, whole, tensors, std::move(reach)));
}

namespace {

// An f32 block stays in the first-level cache while two blocks are read. The products that are
// exchanged (24 bytes per block and pair of groups) are small beside a block.
constexpr uint64_t kBlockElements = 8192;

// The factor of a vector in its pair: `square` is its product with itself, `dot` its product with
// the other vector.
double Share(double dot, double square) { return square == 0 ? 1 : 1 - dot / (2 * square); }

}  // namespace

std::vector<TensorBlock> CutIntoBlocks(const Counts& tensors) {
  std::vector<TensorBlock> blocks;
  uint64_t first = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    for (uint64_t left = tensors[tensor]; left > 0;) {
      const uint64_t count = std::min(left, kBlockElements);
      blocks.push_back({first, count, tensor});
      first += count;
      left -= count;
    }
  }
  return blocks;
}

std::vector<size_t> DealBlocks(const std::vector<TensorBlock>& blocks, int size) {
  const uint64_t all = blocks.empty() ? 0 : blocks.back().first + blocks.back().count;
  const auto p = static_cast<uint64_t>(size);
  std::vector<size_t> begins;
  for (uint64_t r = 0; r <= p; ++r) {
    const uint64_t target = all / p * r + all % p * r / p;
    const auto begin = std::lower_bound(
        blocks.begin(), blocks.end(), target,
        [](const auto& block, uint64_t to) { return block.first + block.count / 2 < to; });
    begins.push_back(r == p ? blocks.size() : static_cast<size_t>(begin - blocks.begin()));
  }
  return begins;
}

AdasumTree::AdasumTree(int size, size_t tensor_count)
    : size_(size), weights_(tensor_count * Size(), 1.0) {}

void AdasumTree::Combine(
    const std::vector<TensorBlock>& blocks, const std::vector<Products>& products) {
  const auto pair_count = static_cast<size_t>(pairs()), half = static_cast<size_t>(group_);
  for (size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
    const size_t tensor = blocks[begin].tensor;
    while (end < blocks.size() && blocks[end].tensor == tensor) ++end;
    for (size_t pair = 0; pair < pair_count; ++pair) {
      Products sum;
      for (size_t block = begin; block < end; ++block) {
        const Products& part = products[block * pair_count + pair];
        sum.aa += part.aa;
        sum.bb += part.bb;
        sum.ab += part.ab;
      }
      double* const weights = &weights_[tensor * Size() + pair * 2 * half];
      const double a = Share(sum.ab, sum.aa), b = Share(sum.ab, sum.bb);
      for (size_t r = 0; r < half; ++r) {
        weights[r] *= a;
        weights[half + r] *= b;
      }
    }
  }
  group_ *= 2;
}

void AdasumTree::Scale(double factor) {
  for (double& weight : weights_) weight *= factor;
}

}  // namespace dtrun::ops
