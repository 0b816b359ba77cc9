#include "runtime/named/process_sets.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/device/block_device.h"
#include "runtime/job/rank_agreement.h"

namespace dtrun::runtime::named {
namespace {

using base::Text;

// The name of barriers. No tensor may have it.
constexpr std::string_view kBarrierName = "(barrier)";

[[noreturn]] void Refuse(const NamedTensor& tensor, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, Text("tensor '", tensor.name, "': ", what));
}

// FNV-1a of the sorted names. Never 0, which means no group.
uint64_t DigestOf(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  uint64_t digest = 0xcbf29ce484222325u;
  const auto add = [&digest](unsigned char c) { digest = (digest ^ c) * 0x100000001b3u; };
  for (const std::string_view name : names) {
    for (const char c : name) add(static_cast<unsigned char>(c));
    add(0);
  }
  return digest == 0 ? 1 : digest;
}

// --- one tensor ---------------------------------------------------------------------------------

void CheckTensor(const NamedTensor& tensor) {
  const Buffer& input = tensor.input;
  if (tensor.name.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a tensor has no name; expected one");
  }
  if (tensor.name == kBarrierName)
    Refuse(tensor, "the name is reserved for barriers; expected another name");
  if (SizeOf(input.dtype) == 0) {
    Refuse(tensor, Text("found dtype ", static_cast<int>(input.dtype), ", which does not exist"));
  }
  uint64_t count = 1;
  for (const uint64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(count, dimension, &count))
      Refuse(tensor, "the product of the shape has more than 64 bits");
  }
  if (count != input.count) {
    Refuse(
        tensor,
        Text("found ", input.count, " elements; expected ", count, ", the product of the shape"));
  }
  if (count > UINT64_MAX / 2 / SizeOf(input.dtype)) {
    Refuse(tensor, Text("found ", count, " elements, more than memory can hold"));
  }
  if (input.data == nullptr && count > 0) {
    Refuse(tensor, Text("found null data for ", count, " elements"));
  }
}

void CheckAdasum(const Operation& operation, const NamedTensor& tensor, int size) {
  if (operation.kind != Kind::kAllReduce) {
    Refuse(
        tensor, Text(
                    NameOf(operation.kind),
                    " has no reduce op adasum, which needs whole tensors; expected all_reduce"));
  }
  if (!ops::AdasumTakes(size)) {
    Refuse(
        tensor, Text(
                    "adasum on the ", size, " ranks of process set ", operation.set,
                    "; expected a number of ranks that is a power of two"));
  }
  if (!ops::AdasumTakes(tensor.input.dtype)) {
    Refuse(
        tensor, Text("adasum of ", NameOf(tensor.input.dtype), "; expected f16, bf16, f32 or f64"));
  }
}

void CheckArithmetic(const Operation& operation, const NamedTensor& tensor, int size) {
  const Scale& scale = operation.scale;
  if (!Reduces(operation.kind)) {
    if (scale.before == 1 && scale.after == 1) return;
    Refuse(tensor, Text(NameOf(operation.kind), " has no scale; expected the factors 1 and 1"));
  }
  if (operation.op < ReduceOp::kSum || operation.op > ReduceOp::kAdasum) {
    Refuse(tensor, Text("reduce op ", static_cast<int>(operation.op), " does not exist"));
  }
  if (operation.op == ReduceOp::kAdasum) CheckAdasum(operation, tensor, size);
  if (scale.before == 1 && scale.after == 1) return;
  if (!std::isfinite(scale.before) || !std::isfinite(scale.after)) {
    Refuse(
        tensor, Text(
                    "the scale is ", scale.before, " before and ", scale.after,
                    " after; expected finite numbers"));
  }
  if (tensor.input.dtype == DType::kBool) Refuse(tensor, "bools cannot be scaled");
}

void CheckRows(const Operation& operation, const NamedTensor& tensor, int size) {
  const bool by_rows = operation.kind != Kind::kAllReduce && operation.kind != Kind::kBroadcast;
  if (!by_rows) return;
  if (tensor.shape.empty()) {
    Refuse(
        tensor,
        Text("found a scalar; expected at least one dimension for ", NameOf(operation.kind)));
  }
  if (operation.kind != Kind::kAllToAll) return;
  const uint64_t rows = tensor.shape[0];
  if (!tensor.has_splits) {
    if (rows % static_cast<uint64_t>(size) == 0) return;
    Refuse(
        tensor,
        Text("found ", rows, " rows, which ", size, " ranks cannot share evenly; give splits"));
  }
  uint64_t sum = 0;
  for (const uint64_t split : tensor.splits) {
    if (__builtin_add_overflow(sum, split, &sum))
      Refuse(tensor, "the sum of the splits has more than 64 bits");
  }
  if (sum > rows) {
    Refuse(
        tensor,
        Text(
            "the sum of the splits is ", sum, "; expected at most ", rows, ", the number of rows"));
  }
}

// Leaves out the rows behind those that the splits cover.
void TakeCoveredRows(NamedTensor& tensor) {
  if (!tensor.has_splits || tensor.shape.empty() || tensor.shape[0] == 0) return;
  const uint64_t row = tensor.input.count / tensor.shape[0];
  tensor.shape[0] = std::accumulate(tensor.splits.begin(), tensor.splits.end(), uint64_t{0});
  tensor.input.count = tensor.shape[0] * row;
}

void CheckOutput(
    const Operation& operation, const NamedTensor& tensor, const Request& request, int rank,
    int size) {
  const Buffer& output = tensor.output;
  if (output.data == nullptr) return;
  const Kind kind = operation.kind;
  if (kind == Kind::kAllGather || kind == Kind::kAllToAll) {
    Refuse(
        tensor, Text(
                    NameOf(kind),
                    " makes its own output, whose size only the ranks together know; expected "
                    "null"));
  }
  const uint64_t count = kind == Kind::kReduceScatter
                             ? request.RowsTo(rank, size) * request.row_elements()
                             : request.count();
  if (output.count != count || output.dtype != tensor.input.dtype) {
    Refuse(
        tensor, Text(
                    "the output has ", output.count, " elements of ", NameOf(output.dtype),
                    "; expected ", count, " of ", NameOf(tensor.input.dtype)));
  }
  const char* in = static_cast<const char*>(tensor.input.data);
  const char* out = static_cast<const char*>(output.data);
  const bool apart = in >= out + output.bytes() || out >= in + tensor.input.bytes();
  const bool in_place = kind != Kind::kReduceScatter && in == out;
  if (output.bytes() > 0 && tensor.input.bytes() > 0 && !apart && !in_place) {
    Refuse(tensor, "the input and the output overlap; expected the same memory or separate memory");
  }
}

// Copies an input on a GPU into host memory. The result will be copied to an output on a GPU.
void MoveToHost(Submitted& submitted) {
  Buffer &input = submitted.input, &output = submitted.output;
  if (output.data != nullptr && output.device >= 0) {
    submitted.gpu.result = output;
    output = Buffer(nullptr, 0, input.dtype);  // memory of the queue
  }
  if (input.device < 0) return;
  submitted.gpu.input = std::make_unique_for_overwrite<char[]>(input.bytes());
  const Buffer copy(submitted.gpu.input.get(), input.count, input.dtype);
  Copy(input, copy);
  input = copy;
}

// Checks a tensor, and makes its request to the queue of the process set.
Submitted Prepare(
    const Operation& operation, NamedTensor& tensor, int root, const SetQueue& queue) {
  CheckTensor(tensor);
  CheckArithmetic(operation, tensor, queue.size());
  CheckRows(operation, tensor, queue.size());
  if (operation.kind == Kind::kAllToAll) TakeCoveredRows(tensor);
  Request request{
      .kind = operation.kind,
      .dtype = tensor.input.dtype,
      .op = Reduces(operation.kind) ? operation.op : ReduceOp::kSum,
      .root = root,
      .before = operation.scale.before,
      .after = operation.scale.after,
      .shape = std::move(tensor.shape),
      .splits = std::move(tensor.splits)};
  CheckOutput(operation, tensor, request, queue.rank(), queue.size());
  const bool in_place = tensor.output.data == nullptr &&
                        (operation.kind == Kind::kAllReduce || operation.kind == Kind::kBroadcast);
  Submitted submitted{
      tensor.name, std::move(request), tensor.input, in_place ? tensor.input : tensor.output};
  MoveToHost(submitted);
  return submitted;
}

}  // namespace

// --- a submission -------------------------------------------------------------------------------

void NamedWork::Wait() {
  if (queue_ != nullptr) queue_->Wait(*submission_);
  if (submission_->error) std::rethrow_exception(submission_->error);
}

const Part& NamedWork::result(size_t index) const {
  const bool done = submission_->done.load(std::memory_order_acquire);
  if (!done || submission_->error != nullptr) {
    throw Error(
        ErrorCode::kInvalidArgument,
        done ? "the work has failed and has no results" : "the work is not done yet; wait for it");
  }
  if (index >= submission_->parts.size()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("tensor ", index, " does not exist; the work has ", submission_->parts.size()));
  }
  return submission_->parts[index];
}

int NamedWork::last_joined() const {
  const bool done = submission_->done.load(std::memory_order_acquire);
  if (!done || submission_->last_joined < 0) {
    throw Error(ErrorCode::kInvalidArgument, "the work is not a finished join");
  }
  return submission_->last_joined;
}

NamedWork NamedQueue::Submit(const Operation& operation, NamedTensor tensor, Callback callback) {
  std::shared_ptr<SetQueue> queue = MemberOf(operation.set, NameOf(operation.kind));
  Submitted submitted = Prepare(operation, tensor, RootOf(operation, tensor), *queue);
  auto submission = queue->Submit({&submitted, 1}, std::move(callback));
  return NamedWork(std::move(queue), std::move(submission));
}

NamedWork NamedQueue::Submit(
    const Operation& operation, std::vector<NamedTensor> tensors, Callback callback) {
  if (tensors.size() == 1) return Submit(operation, std::move(tensors[0]), std::move(callback));
  std::shared_ptr<SetQueue> queue = MemberOf(operation.set, NameOf(operation.kind));
  if (tensors.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a group has no tensors; expected one at least");
  }
  const int root = RootOf(operation, tensors[0]);
  const uint64_t group = DigestOf(tensors);
  std::vector<Submitted> submitted;
  submitted.reserve(tensors.size());
  for (NamedTensor& tensor : tensors) {
    submitted.push_back(Prepare(operation, tensor, root, *queue));
    submitted.back().request.group_size = static_cast<uint32_t>(tensors.size());
    submitted.back().request.group = group;
  }
  auto submission = queue->Submit(submitted, std::move(callback));
  return NamedWork(std::move(queue), std::move(submission));
}

// The root of a broadcast, as a rank of the process set.
int NamedQueue::RootOf(const Operation& operation, const NamedTensor& tensor) const {
  if (operation.kind != Kind::kBroadcast) return 0;
  const std::vector<int> ranks = RanksOf(operation.set);
  const auto found = std::find(ranks.begin(), ranks.end(), operation.root);
  if (found == ranks.end()) {
    Refuse(
        tensor, Text(
                    "root is ", operation.root, "; expected one of ", base::RankList(ranks),
                    ", which are in process set ", operation.set));
  }
  return static_cast<int>(found - ranks.begin());
}

NamedWork NamedQueue::Barrier(int set, Callback callback) {
  const std::shared_ptr<SetQueue> queue = MemberOf(set, "barrier");
  Submitted barrier{kBarrierName, Request{}, Buffer(), Buffer()};
  return NamedWork(queue, queue->Submit({&barrier, 1}, std::move(callback)));
}

NamedWork NamedQueue::Join(int set, Callback callback) {
  const std::shared_ptr<SetQueue> queue = MemberOf(set, "join");
  return NamedWork(queue, queue->Join(std::move(callback)));
}

// --- process sets -------------------------------------------------------------------------------

NamedQueue::NamedQueue(
    ops::Communicator& communicator, ops::Engine& engine, base::LogSink log,
    const Settings& settings)
    : engine_(engine),
      log_(std::move(log)),
      settings_(settings),
      control_(communicator.Duplicate()) {
  Agree(
      *control_, {.owner = "the named queue",
                  .items = "named queues",
                  .item = "line",
                  .lines = {Text(
                      "batch_bytes=", settings.batch_bytes, " cache_capacity=",
                      settings.cache_capacity, " process sets=", settings.first_sets)}});
  std::vector<int> everyone(static_cast<size_t>(communicator.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto queue = std::make_shared<SetQueue>(*control_, engine_, log_, settings_, Observe(""));
  engine_.AddDriver(queue);
  Insert({std::move(everyone), std::move(queue)});
}

std::unique_ptr<TensorObserver> NamedQueue::Observe(const std::string& ranks) const {
  return settings_.observe == nullptr ? nullptr : settings_.observe(ranks);
}

NamedQueue::~NamedQueue() {
  for (auto& [id, set] : sets_) {
    if (set.queue == nullptr) continue;
    engine_.RemoveDriver(*set.queue);
    set.queue->Close();
  }
}

int NamedQueue::Insert(Set set) {
  std::lock_guard lock(mutex_);
  const int id = next_set_++;
  sets_.emplace(id, std::move(set));
  return id;
}

void NamedQueue::CheckSet(const std::vector<int>& ranks) const {
  const auto refuse = [&](const std::string& what, ErrorCode code = ErrorCode::kInvalidArgument) {
    throw Error(code, Text("process set of ", base::RankList(ranks), what));
  };
  if (ranks.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a process set has no ranks; expected one at least");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= control_->size()) {
      refuse(Text(
          ": rank ", ranks[i], " does not exist; expected ranks from 0 to ", control_->size() - 1));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      refuse(Text(": rank ", ranks[i], " is listed twice"));
    }
  }
  std::lock_guard lock(mutex_);
  for (const auto& [id, set] : sets_) {
    if (set.ranks == ranks)
      refuse(Text(" exists already, as process set ", id), ErrorCode::kDuplicateSet);
  }
}

int NamedQueue::AddSet(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  Agree(
      *control_, {.owner = "the named queue",
                  .items = "process sets to add or remove",
                  .item = "process set",
                  .lines = {"", Text("to add, of ", base::RankList(ranks))}});
  CheckSet(ranks);
  const std::unique_ptr<ops::Communicator> communicator = control_->Subset(ranks);
  std::shared_ptr<SetQueue> queue;
  if (communicator != nullptr) {
    queue = std::make_shared<SetQueue>(
        *communicator, engine_, log_, settings_, Observe(base::RankList(ranks)));
    engine_.AddDriver(queue);
  }
  return Insert({std::move(ranks), std::move(queue)});
}

void NamedQueue::RemoveSet(int set) {
  std::shared_ptr<SetQueue> queue;
  bool exists = false;
  {
    std::lock_guard lock(mutex_);
    const auto found = sets_.find(set);
    exists = found != sets_.end();
    if (exists) queue = found->second.queue;
  }
  const bool idle = Agree(
      *control_,
      {.owner = "the named queue",
       .items = "process sets to add or remove",
       .item = "process set",
       .lines = {"", Text("to remove, number ", set)}},
      queue == nullptr || queue->IsIdle());
  const char* obstacle = !exists    ? " does not exist"
                         : set == 0 ? " has all ranks and cannot be removed"
                         : !idle    ? " has work under way; wait for the work first"
                                    : nullptr;
  if (obstacle != nullptr) {
    throw Error(ErrorCode::kInvalidArgument, Text("process set ", set, obstacle));
  }
  if (queue != nullptr) {
    engine_.RemoveDriver(*queue);
    queue->Close();
  }
  std::lock_guard lock(mutex_);
  sets_.erase(set);
}

std::vector<int> NamedQueue::Sets() const {
  std::lock_guard lock(mutex_);
  std::vector<int> numbers;
  for (const auto& [number, set] : sets_) numbers.push_back(number);
  return numbers;
}

std::vector<int> NamedQueue::RanksOf(int set) const {
  std::lock_guard lock(mutex_);
  const auto found = sets_.find(set);
  if (found == sets_.end()) {
    throw Error(ErrorCode::kInvalidArgument, Text("process set ", set, " does not exist"));
  }
  return found->second.ranks;
}

std::shared_ptr<SetQueue> NamedQueue::MemberOf(int set, const char* operation) const {
  std::lock_guard lock(mutex_);
  const auto found = sets_.find(set);
  if (found == sets_.end()) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(operation, ": process set ", set, " does not exist"));
  }
  if (found->second.queue == nullptr) {
    throw Error(
        ErrorCode::kNotInSet,
        Text(
            operation, ": this is rank ", control_->rank(), ", which is not in process set ", set,
            "; its members are ", base::RankList(found->second.ranks)),
        {}, operation);
  }
  return found->second.queue;
}

}  // namespace dtrun::runtime::named
