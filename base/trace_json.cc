// A rank's records become slices. A slice has a row, a begin, a duration and a depth. Slices are
// sorted by row, begin and depth, so that an enclosing slice stands before the slices inside it.
// Collectives overlap each other, so each takes the first free row of collectives. The arrows come
// last, when the places of all ranks are known.

#include "base/trace_json.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>

#include "base/json.h"
#include "base/text.h"
#include "dtrun/types.h"

namespace dtrun::base {
namespace {

using Write = std::function<void(const std::string&)>;

// Rows of a rank: its threads, then further reducers of a thread, then collectives, then named
// tensors.
constexpr int kFirstThreadRow = 1;
constexpr int kFirstReducerRow = 1000;
constexpr int kFirstCollectiveRow = 2000;
constexpr int kFirstTensorRow = 1000000;

// The process of the job's changes. Greater than any rank.
constexpr int kJobProcess = 1000000000;

// Identifies a collective on all ranks: epoch, communicator, sequence, -1 and the kind. For a
// message, the last two are the two ranks.
using FlowKey = std::tuple<uint32_t, std::string, uint64_t, int, int>;

struct FlowPoint {
  int64_t time_ns;
  int rank, row;
  const char* name;
};

struct Slice {
  enum class Kind {
    kStep,
    kCompute,
    kWait,
    kMark,
    kCollective,
    kArriving,
    kMoving,
    kTensor,
    kAgreeing,
    kTensorMoving
  };
  int row;
  int64_t begin_ns, duration_ns;  // a mark has no duration
  int depth;
  Kind kind;
  size_t index;  // of the operation, mark, wait or tensor
  bool unfinished = false;

  auto Order() const { return std::tuple(row, begin_ns, depth); }
};

// Microseconds, as the format wants them.
std::string Microseconds(int64_t ns) {
  char text[40];
  const char* sign = ns < 0 ? "-" : "";
  const auto size = static_cast<unsigned long long>(ns < 0 ? -ns : ns);
  std::snprintf(text, sizeof text, "%s%llu.%03llu", sign, size / 1000, size % 1000);
  return text;
}

CollectiveKind KindOf(const TracedOperation& operation) {
  return static_cast<CollectiveKind>(operation.call.kind);
}

std::string Metadata(const char* name, int rank, int row, const std::string& value) {
  return Text(
      R"({"ph":"M","name":")", name, R"(","pid":)", rank, R"(,"tid":)", row, R"(,"ts":0,"args":{)",
      value, "}}");
}

class RankWriter {
 public:
  RankWriter(
      const RankTrace& trace, int64_t shift_ns, std::map<FlowKey, std::vector<FlowPoint>>& flows)
      : trace_(trace), shift_ns_(shift_ns), flows_(flows) {}

  // Writes one event per line.
  void WriteTo(const std::function<void(const std::string&)>& event) {
    AddReducers();
    AddCollectives();
    AddTensors();
    event(Metadata(
        "process_name", trace_.rank, 0,
        "\"name\":" + AsciiJsonText(Text("rank ", trace_.rank, " (", trace_.host, ")"))));
    event(Metadata("process_sort_index", trace_.rank, 0, Text("\"sort_index\":", trace_.rank)));
    for (const auto& [row, name] : rows_) {
      event(Metadata("thread_name", trace_.rank, row, "\"name\":" + AsciiJsonText(name)));
      event(Metadata("thread_sort_index", trace_.rank, row, Text("\"sort_index\":", row)));
    }
    std::stable_sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
      return a.Order() < b.Order();
    });
    for (const auto& [key, name] : trace_.gradients) names_[key] = AsciiJsonText(name);
    for (const Slice& slice : slices_) event(JsonOf(slice));
  }

 private:
  // The first reducer of a thread has the row of the thread.
  int RowOf(uint8_t thread, uint32_t reducer) {
    const auto [place, is_new] = reducer_rows_.try_emplace({thread, reducer}, 0);
    if (!is_new) return place->second;
    const auto known = trace_.threads.find(thread);
    std::string name = known == trace_.threads.end() ? Text("thread ", int{thread}) : known->second;
    int row = kFirstThreadRow + thread;
    if (rows_.count(row) != 0) {
      row = kFirstReducerRow + static_cast<int>(reducer_rows_.size());
      name += Text(", reducer ", reducer);
    }
    rows_[row] = name;
    return place->second = row;
  }

  void AddReducers() {
    std::map<uint32_t, int64_t> begins;  // of the step under way, by reducer
    std::map<uint32_t, uint8_t> threads;
    size_t mark = 0;
    const auto take_marks = [&](int64_t until) {
      for (; mark < trace_.marks.size() && trace_.marks[mark].time_ns <= until; ++mark) {
        const TracedMark& marked = trace_.marks[mark];
        begins.try_emplace(marked.reducer, marked.time_ns);
        threads[marked.reducer] = marked.thread;
        slices_.push_back(
            {RowOf(marked.thread, marked.reducer), marked.time_ns, 0, 3, Slice::Kind::kMark, mark});
      }
    };
    for (size_t i = 0; i < trace_.waits.size(); ++i) {
      const TracedWait& wait = trace_.waits[i];
      const int64_t first = wait.begin_ns != 0 ? wait.begin_ns : wait.end_ns;
      take_marks(first);
      const int row = RowOf(wait.thread, wait.reducer);
      threads[wait.reducer] = wait.thread;
      const int64_t begin = begins.try_emplace(wait.reducer, first).first->second;
      const bool unfinished = wait.end_ns == 0;
      const int64_t end = unfinished ? trace_.last_ns : wait.end_ns;
      Add(row, begin, end, 0, Slice::Kind::kStep, i, unfinished);
      if (first > begin) Add(row, begin, first, 1, Slice::Kind::kCompute, i, false);
      Add(row, first, end, 1, Slice::Kind::kWait, i, unfinished);
      begins[wait.reducer] = end;
    }
    take_marks(INT64_MAX);
    for (const auto& [reducer, begin] : begins)
      if (trace_.last_ns > begin)
        Add(RowOf(threads[reducer], reducer), begin, trace_.last_ns, 1, Slice::Kind::kCompute, 0,
            true);
  }

  void AddCollectives() {
    std::vector<int64_t> free_at;  // by row of collectives
    for (size_t i = 0; i < trace_.operations.size(); ++i) {
      const TracedOperation& operation = trace_.operations[i];
      const bool unfinished = operation.end_ns == 0;
      const int64_t begin = operation.start_ns;
      const int64_t end = std::max(begin, unfinished ? trace_.last_ns : operation.end_ns);
      const auto lane = static_cast<size_t>(
          std::find_if(free_at.begin(), free_at.end(), [&](int64_t t) { return t <= begin; }) -
          free_at.begin());
      if (lane == free_at.size()) free_at.push_back(0);
      free_at[lane] = std::max(end, begin + 1);
      const int row = kFirstCollectiveRow + static_cast<int>(lane);
      rows_[row] = Text("collectives ", lane + 1);
      Add(row, begin, end, 0, Slice::Kind::kCollective, i, unfinished);
      if (operation.arrival_ns != 0) {
        const int64_t arrival = std::clamp(operation.arrival_ns, begin, end);
        Add(row, begin, arrival, 1, Slice::Kind::kArriving, i, false);
        Add(row, arrival, end, 1, Slice::Kind::kMoving, i, false);
      }
      flows_[KeyOf(operation)].push_back(
          {begin - shift_ns_, trace_.rank, row,
           IsMessage(KindOf(operation)) ? "message" : NameOf(KindOf(operation))});
    }
  }

  // A name is under way at most once at a time.
  void AddTensors() {
    for (size_t i = 0; i < trace_.tensors.size(); ++i) {
      const TracedTensor& tensor = trace_.tensors[i];
      const int row = kFirstTensorRow + static_cast<int>(tensor.tensor % kFirstTensorRow);
      rows_[row] = NameOfTensor(tensor);
      const bool unfinished = tensor.end_ns == 0;
      const int64_t begin = tensor.submit_ns;
      const int64_t end = std::max(begin, unfinished ? trace_.last_ns : tensor.end_ns);
      Add(row, begin, end, 0, Slice::Kind::kTensor, i, unfinished);
      const int64_t agreed = tensor.agreed_ns == 0 ? end : std::clamp(tensor.agreed_ns, begin, end);
      Add(row, begin, agreed, 1, Slice::Kind::kAgreeing, i, false);
      if (agreed < end) Add(row, agreed, end, 1, Slice::Kind::kTensorMoving, i, false);
    }
  }

  std::string NameOfTensor(const TracedTensor& tensor) const {
    const auto known = trace_.tensor_names.find(tensor.tensor);
    return known == trace_.tensor_names.end() ? Text("tensor ", tensor.tensor) : known->second;
  }

  FlowKey KeyOf(const TracedOperation& operation) const {
    const auto found = trace_.communicators.find(operation.communicator);
    const std::string name = found == trace_.communicators.end()
                                 ? Text("communicator ", operation.communicator)
                                 : found->second;
    const CollectiveKind kind = KindOf(operation);
    if (!IsMessage(kind))
      return {trace_.epoch, name, operation.sequence, -1, static_cast<int>(kind)};
    const bool sends = kind == CollectiveKind::kSend;
    const int own = operation.own_rank, peer = operation.call.root;
    return {trace_.epoch, name, operation.sequence, sends ? own : peer, sends ? peer : own};
  }

  void Add(
      int row, int64_t begin, int64_t end, int depth, Slice::Kind kind, size_t index,
      bool unfinished) {
    slices_.push_back(
        {row, begin, std::max<int64_t>(end - begin, 0), depth, kind, index, unfinished});
  }

  std::string JsonOf(const Slice& slice) const {
    std::string name, category = "step", arguments;
    switch (slice.kind) {
      case Slice::Kind::kStep: name = R"("step")"; break;
      case Slice::Kind::kCompute: name = R"("compute")"; break;
      case Slice::Kind::kWait: name = R"("wait")"; break;
      case Slice::Kind::kMark: return MarkJson(slice);
      case Slice::Kind::kCollective:
        name = Text('"', NameOf(KindOf(trace_.operations[slice.index])), '"');
        category = "collective";
        arguments = ArgumentsOf(trace_.operations[slice.index]);
        break;
      case Slice::Kind::kArriving: name = R"("ranks arrive")", category = "collective"; break;
      case Slice::Kind::kMoving: name = R"("data moves")", category = "collective"; break;
      case Slice::Kind::kTensor:
        name = AsciiJsonText(NameOfTensor(trace_.tensors[slice.index]));
        category = "tensor";
        if (trace_.tensors[slice.index].failed) arguments = R"("failed":true)";
        break;
      case Slice::Kind::kAgreeing: name = R"("ranks agree")", category = "tensor"; break;
      case Slice::Kind::kTensorMoving: name = R"("data moves")", category = "tensor"; break;
    }
    if (slice.unfinished) arguments += Text(arguments.empty() ? "" : ",", R"("unfinished":true)");
    return Text(
        R"({"ph":"X","name":)", name, R"(,"cat":")", category, R"(","pid":)", trace_.rank,
        R"(,"tid":)", slice.row, R"(,"ts":)", Microseconds(slice.begin_ns - shift_ns_),
        R"(,"dur":)", Microseconds(slice.duration_ns), R"(,"args":{)", arguments, "}}");
  }

  std::string MarkJson(const Slice& slice) const {
    const TracedMark& mark = trace_.marks[slice.index];
    const auto name = names_.find({mark.reducer, mark.gradient});
    return Text(
        R"({"ph":"i","s":"t","name":)",
        name == names_.end() ? AsciiJsonText(Text("gradient ", mark.gradient)) : name->second,
        R"(,"cat":"ready","pid":)", trace_.rank, R"(,"tid":)", slice.row, R"(,"ts":)",
        Microseconds(slice.begin_ns - shift_ns_), R"(,"args":{"gradient":)", mark.gradient,
        R"(,"reducer":)", mark.reducer, "}}");
  }

  std::string ArgumentsOf(const TracedOperation& operation) const {
    const auto [epoch, communicator, sequence, from, to] = KeyOf(operation);
    std::string text = Text(
        R"("communicator":)", AsciiJsonText(communicator), R"(,"sequence":)", sequence,
        R"(,"operation":)", AsciiJsonText(Describe(operation.call)), R"(,"bytes":)",
        operation.call.count * SizeOf(static_cast<DType>(operation.call.dtype)));
    if (operation.bucket)
      text += Text(
          R"(,"reducer":)", operation.bucket->first, R"(,"bucket":)", operation.bucket->second);
    if (operation.failed) text += R"(,"failed":true)";
    return text;
  }

  const RankTrace& trace_;
  int64_t shift_ns_;
  std::map<FlowKey, std::vector<FlowPoint>>& flows_;
  std::vector<Slice> slices_;
  std::map<int, std::string> rows_;
  std::map<std::pair<uint8_t, uint32_t>, int> reducer_rows_;  // by thread and reducer
  std::map<std::pair<uint32_t, uint32_t>, std::string> names_;
};

// Different communicators may have the same name. Their operations then share a key, and it is
// unknown which of them belong together.
bool AreOfDifferentRanks(const std::vector<FlowPoint>& points) {
  std::set<int> ranks;
  for (const FlowPoint& point : points) ranks.insert(point.rank);
  return ranks.size() == points.size();
}

// Writes the arrows between the points. The points lie inside slices.
void WriteFlow(
    std::vector<FlowPoint>& points, uint64_t id,
    const std::function<void(const std::string&)>& event) {
  std::stable_sort(points.begin(), points.end(), [](const FlowPoint& a, const FlowPoint& b) {
    return a.time_ns < b.time_ns;
  });
  for (size_t i = 0; i < points.size(); ++i) {
    const char* phase = i == 0 ? "s" : i + 1 == points.size() ? "f" : "t";
    event(Text(
        R"({"ph":")", phase, R"(","name":")", points[i].name, R"(","cat":"flow","id":)", id,
        i == 0 ? "" : R"(,"bp":"e")", R"(,"pid":)", points[i].rank, R"(,"tid":)", points[i].row,
        R"(,"ts":)", Microseconds(points[i].time_ns), "}"));
  }
}

void WriteChanges(
    const TracedChanges& all, int64_t shift_ns,
    const std::function<void(const std::string&)>& event) {
  if (all.changes.empty()) return;
  event(Metadata("process_name", kJobProcess, 0, R"("name":"job")"));
  event(Metadata("process_sort_index", kJobProcess, 0, R"("sort_index":-1)"));
  event(Metadata("thread_name", kJobProcess, kFirstThreadRow, R"("name":"lost and gained ranks")"));
  for (const TracedChange& change : all.changes) {
    const bool unfinished = change.end_ns == 0;
    const int64_t end = std::max(unfinished ? all.end_ns : change.end_ns, change.begin_ns);
    std::string arguments = change.details;
    if (unfinished) arguments += Text(arguments.empty() ? "" : ",", R"("unfinished":true)");
    event(Text(
        R"({"ph":"X","name":)", AsciiJsonText(change.name), R"(,"cat":"change","pid":)",
        kJobProcess, R"(,"tid":)", kFirstThreadRow, R"(,"ts":)",
        Microseconds(change.begin_ns - shift_ns), R"(,"dur":)", Microseconds(end - change.begin_ns),
        R"(,"args":{)", arguments, "}}"));
  }
}

}  // namespace

void WriteTraceJson(
    const std::vector<TraceSource>& sources,
    const std::vector<std::pair<std::string, std::string>>& metadata, const Write& write,
    const TracedChanges& changes) {
  std::string buffer = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  bool first = true;
  const auto event = [&](const std::string& json) {
    if (!first) buffer += ",\n";
    first = false;
    buffer += json;
    if (buffer.size() < (1 << 20)) return;
    write(buffer);
    buffer.clear();
  };
  std::optional<int64_t> origin_ns, origin_unix_ns;
  std::map<FlowKey, std::vector<FlowPoint>> flows;
  std::string ranks;
  for (const TraceSource& source : sources) {
    const std::optional<RankTrace> trace = source.read();
    if (!trace) continue;
    // The times of the first rank begin at 0. Times of other ranks may be negative.
    if (!origin_ns) {
      origin_ns = trace->start_ns - source.clock.offset_ns;
      origin_unix_ns = trace->start_ns + trace->unix_offset_ns;
    }
    RankWriter(*trace, source.clock.offset_ns + *origin_ns, flows).WriteTo(event);
    ranks += Text(
        ranks.empty() ? "\n" : ",\n", R"({"rank":)", trace->rank, R"(,"host":)",
        AsciiJsonText(trace->host), R"(,"pid":)", trace->pid, R"(,"epoch":)", trace->epoch,
        R"(,"dropped_records":)", trace->dropped, R"(,"clock_offset_us":)",
        Microseconds(source.clock.offset_ns), R"(,"clock_uncertainty_us":)",
        Microseconds(source.clock.uncertainty_ns), "}");
  }
  WriteChanges(changes, origin_ns.value_or(0), event);
  uint64_t id = 0;
  for (auto& [key, points] : flows)
    if (points.size() > 1 && AreOfDifferentRanks(points)) WriteFlow(points, ++id, event);
  buffer += "\n],\"otherData\":{";
  for (const auto& [name, value] : metadata) buffer += Text(AsciiJsonText(name), ":", value, ",\n");
  buffer += Text(
      R"("start_time_since_epoch_in_micros":)", origin_unix_ns.value_or(0) / 1000, R"(,"ranks":[)",
      ranks, "]}}\n");
  write(buffer);
}

}  // namespace dtrun::base
