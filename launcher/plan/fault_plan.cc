// Each fault is a list of words. A reader takes them from the left.
//
// FaultInjector tells what to do when a fault is due. A slow rank is stopped and continued in turn:
// it runs kSlice, then is stopped for (factor - 1) such slices.

#include "launcher/plan/fault_plan.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "launcher/support/launch_error.h"

namespace dtrun::launcher {
namespace {

using base::Text;
using std::chrono::milliseconds;
using Kind = Fault::Kind;

constexpr double kMostSeconds = 1e7;
constexpr int kMostRandom = 10'000;
constexpr milliseconds kSlice{20}, kBetweenStepLooks{10}, kLongest{500};

class FaultWords {
 public:
  explicit FaultWords(const std::string& item) {
    std::istringstream stream(item);
    for (std::string word; stream >> word;) words_.push_back(word);
    text_ = base::Join(words_, " ");
  }

  const std::string& text() const { return text_; }
  bool AtEnd() const { return next_ == words_.size(); }
  bool Takes(const std::string& word) {
    const bool is_next = !AtEnd() && words_[next_] == word;
    next_ += is_next ? 1 : 0;
    return is_next;
  }
  void Expect(const std::string& word) {
    if (!Takes(word)) Refuse("'" + word + "'");
  }
  std::string OneOf(const std::vector<std::string>& known) {
    if (AtEnd() || std::find(known.begin(), known.end(), words_[next_]) == known.end())
      Refuse("one of the hosts " + base::Join(known, ", "));
    return words_[next_++];
  }
  int64_t Number(const std::string& what, int64_t least, int64_t most) {
    const auto number = base::ParseInteger(AtEnd() ? "" : words_[next_]);
    if (!number || *number < least || *number > most)
      Refuse(Text(what, " from ", least, " to ", most));
    ++next_;
    return *number;
  }
  // A number with a unit: "5s", "2x".
  double Amount(const std::string& what, char unit, double least, double most) {
    const std::string word = AtEnd() ? "" : words_[next_];
    char* end = nullptr;
    const double amount = std::strtod(word.c_str(), &end);
    const bool is_number = !word.empty() && end == word.c_str() + word.size() - 1 && *end == unit;
    if (!is_number || !std::isfinite(amount) || amount < least || amount > most) Refuse(what);
    ++next_;
    return amount;
  }
  Fault::Duration Seconds() {
    return Fault::Duration(std::llround(1000 * Amount("a time like 5s", 's', 0, kMostSeconds)));
  }

  [[noreturn]] void Refuse(const std::string& expected) const {
    throw UsageError(Text(
        "--inject: in '", text_, "' found ", AtEnd() ? "the end" : "'" + words_[next_] + "'",
        "; expected ", expected));
  }

 private:
  std::string text_;
  std::vector<std::string> words_;
  size_t next_ = 0;
};

void ReadTime(FaultWords& words, Fault& fault) {
  words.Expect("at");
  if (words.Takes("step"))
    fault.step = static_cast<uint64_t>(words.Number("a step", 1, INT64_MAX));
  else
    fault.at = words.Seconds();
}

std::vector<Fault> RandomFaults(FaultWords& words, int ranks) {
  const auto count = words.Number("a number of faults", 1, kMostRandom);
  words.Expect("in");
  const Fault::Duration longest = words.Seconds();
  words.Expect("seed");
  std::mt19937_64 random(static_cast<uint64_t>(words.Number("a seed", 0, INT64_MAX)));
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(std::max<int64_t>(limit, 1)));
  };
  std::vector<Fault> faults;
  for (int64_t i = 0; i < count; ++i) {
    Fault fault = {.kind = below(4) == 0 ? Kind::kStop : Kind::kKill};
    fault.rank = static_cast<int>(below(ranks));
    fault.at = Fault::Duration(below(longest.count()));
    if (fault.kind == Kind::kStop) fault.duration = Fault::Duration(200 + below(1800));
    const auto seconds = [](Fault::Duration time) {
      return Text(static_cast<double>(time.count()) / 1000, "s");
    };
    fault.text = Text(
        fault.kind == Kind::kStop ? "stop rank " : "kill rank ", fault.rank,
        fault.kind == Kind::kStop ? " for " + seconds(fault.duration) : "", " at ",
        seconds(fault.at));
    faults.push_back(fault);
  }
  return faults;
}

Fault ReadFault(FaultWords& words, int ranks, const std::vector<base::HostSlots>& hosts) {
  Fault fault;
  if (words.Takes("drop")) {
    fault.kind = Kind::kDrop;
    words.Expect("host");
    std::vector<std::string> names;
    for (const base::HostSlots& host : hosts) names.push_back(host.name);
    fault.host = words.OneOf(names);
    ReadTime(words, fault);
    if (fault.step) words.Refuse("a time like 20s after 'at': a host makes no steps");
    return fault;
  }
  if (words.Takes("corrupt")) {
    fault.kind = Kind::kCorrupt;
    words.Expect("bucket");
    fault.bucket = static_cast<int>(words.Number("a bucket", 0, INT32_MAX));
    words.Expect("of");
    words.Expect("rank");
    fault.rank = static_cast<int>(words.Number("a rank", 0, ranks - 1));
    ReadTime(words, fault);
    if (!fault.step) words.Refuse("a step like 7 after 'at': a bucket belongs to a step");
    return fault;
  }
  if (words.Takes("stop"))
    fault.kind = Kind::kStop;
  else if (words.Takes("slow"))
    fault.kind = Kind::kSlow;
  else if (!words.Takes("kill"))
    words.Refuse("kill, stop, slow, corrupt, drop or random");
  words.Expect("rank");
  fault.rank = static_cast<int>(words.Number("a rank", 0, ranks - 1));
  if (fault.kind == Kind::kStop) {
    words.Expect("for");
    fault.duration = words.Seconds();
  }
  if (fault.kind == Kind::kSlow) {
    words.Expect("by");
    fault.factor = words.Amount("a factor like 2x, from 1x to 100x", 'x', 1, 100);
    if (words.AtEnd()) return fault;
  }
  ReadTime(words, fault);
  return fault;
}

}  // namespace

std::vector<Fault> ParseFaults(
    const std::string& text, int ranks, const std::vector<base::HostSlots>& hosts) {
  std::vector<Fault> faults;
  for (const std::string& item : base::Split(text, ';')) {
    FaultWords words(item);
    if (words.AtEnd()) continue;
    if (words.Takes("random")) {
      const std::vector<Fault> random = RandomFaults(words, ranks);
      faults.insert(faults.end(), random.begin(), random.end());
    } else {
      faults.push_back(ReadFault(words, ranks, hosts));
      faults.back().text = words.text();
    }
    if (!words.AtEnd()) words.Refuse("the end of the fault, or ';'");
  }
  if (faults.empty())
    throw UsageError("--inject: found no fault; expected for example 'kill rank 1 at step 7'");
  return faults;
}

std::vector<base::Corruption> CorruptionsIn(const std::vector<Fault>& faults) {
  std::vector<base::Corruption> corruptions;
  for (const Fault& fault : faults)
    if (fault.kind == Kind::kCorrupt)
      corruptions.push_back({fault.rank, fault.step.value_or(1), fault.bucket});
  return corruptions;
}

// ---- When faults happen -------------------------------------------------------------------------

FaultInjector::FaultInjector(std::vector<Fault> faults, Time start) : start_(start) {
  for (Fault& fault : faults) planned_.push_back({.fault = std::move(fault)});
}

bool FaultInjector::IsDue(
    const Planned& planned, Time now, const std::vector<base::FlightProgress>& progress) const {
  const Fault& fault = planned.fault;
  if (!fault.step) return now - start_ >= fault.at;
  return std::any_of(progress.begin(), progress.end(), [&](const base::FlightProgress& rank) {
    return rank.rank == fault.rank && rank.step >= *fault.step;
  });
}

std::vector<FaultInjector::Action> FaultInjector::Take(
    Time now, const std::vector<base::FlightProgress>& progress) {
  std::vector<Action> actions;
  for (Planned& planned : planned_) {
    if (planned.has_begun && !planned.is_over && now >= planned.next) GoOn(planned, now, actions);
    if (planned.has_begun || !IsDue(planned, now, progress)) continue;
    planned.has_begun = true;
    const Fault& fault = planned.fault;
    planned.is_over =
        fault.kind == Kind::kKill || fault.kind == Kind::kCorrupt || fault.kind == Kind::kDrop;
    planned.is_stopped = fault.kind == Kind::kStop;
    planned.next = now + (planned.is_stopped ? fault.duration : milliseconds(0));
    const int signal = fault.kind == Kind::kKill   ? SIGKILL
                       : fault.kind == Kind::kStop ? SIGSTOP
                       : fault.kind == Kind::kSlow ? SIGCONT
                                                   : 0;
    actions.push_back({fault.rank, signal, fault.host, fault.text});
  }
  return actions;
}

void FaultInjector::GoOn(Planned& planned, Time now, std::vector<Action>& actions) {
  const Fault& fault = planned.fault;
  planned.is_stopped = !planned.is_stopped;
  actions.push_back({fault.rank, planned.is_stopped ? SIGSTOP : SIGCONT});
  planned.is_over = fault.kind == Kind::kStop;
  const milliseconds stopped(
      std::llround(static_cast<double>(kSlice.count()) * (fault.factor - 1)));
  planned.next = now + (planned.is_stopped ? stopped : kSlice);
}

milliseconds FaultInjector::Pause(Time now) const {
  milliseconds pause = kLongest;
  for (const Planned& planned : planned_) {
    if (planned.is_over) continue;
    if (!planned.has_begun && planned.fault.step) pause = std::min(pause, kBetweenStepLooks);
    const Time next = planned.has_begun ? planned.next : start_ + planned.fault.at;
    if (planned.has_begun || !planned.fault.step)
      pause = std::min(pause, std::chrono::ceil<milliseconds>(std::max(next, now) - now));
  }
  return std::max(pause, milliseconds(1));
}

bool FaultInjector::wants_progress() const {
  return std::any_of(planned_.begin(), planned_.end(), [](const Planned& planned) {
    return !planned.has_begun && planned.fault.step.has_value();
  });
}

}  // namespace dtrun::launcher
