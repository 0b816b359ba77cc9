#include "models/train/agreement.h"

#include <dtrun/error.h>
#include <dtrun/objects.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "models/message_text.h"

namespace dtrun::models {

namespace {

// The highest signal of any rank counts. A stop comes with the notice that was found with it.
enum Signal : int64_t { kNothing = 0, kStop = 1, kNotice = 2, kFailed = 3 };

std::string Pack(const Complaint& complaint) {
  return Text(static_cast<int>(complaint.code), " ", complaint.exit_code, " ", complaint.text);
}

Complaint Unpack(const std::string& bytes) {
  std::istringstream stream(bytes);
  int code = 0;
  Complaint complaint;
  stream >> code >> complaint.exit_code;
  complaint.code = static_cast<ErrorCode>(code);
  stream.get();
  std::getline(stream, complaint.text, '\0');
  return complaint;
}

}  // namespace

bool Agreement::Run(const std::string& what, const std::function<void()>& body) {
  if (failed()) return false;
  const std::string prefix = what.empty() ? "" : what + ": ";
  try {
    body();
    return true;
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout) throw;
    Fail({error.code(), ExitCodeOf(error.code()), prefix + error.what()});
  } catch (const std::exception& error) {
    Fail({ErrorCode::kSystem, kInternal, prefix + error.what()});
  }
  return false;
}

void Agreement::Fail(Complaint complaint) {
  if (!failed()) complaint_ = std::move(complaint);
}

bool Agreement::Settle() {
  const bool stop = std::exchange(stop_, false);
  const bool noticed = notice_ != nullptr && notice_->given();
  int64_t signal = failed() ? kFailed : noticed ? kNotice : stop ? kStop : kNothing;
  world_.AllReduce(Buffer(&signal, 1), ReduceOp::kMax);
  if (signal == kFailed) ThrowTogether();
  preempted_ = signal == kNotice;
  return signal == kStop;
}

void Agreement::ThrowTogether() {
  std::vector<Complaint> of_ranks;
  const std::string mine = complaint_ ? Pack(*complaint_) : "";
  complaint_.reset();
  for (const std::string& bytes : AllGatherBytes(world_, mine))
    of_ranks.push_back(bytes.empty() ? Complaint{} : Unpack(bytes));
  const Complaint combined = CombineComplaints(of_ranks);
  throw AgreedError(combined.code, combined.exit_code, combined.text);
}

Complaint CombineComplaints(const std::vector<Complaint>& of_ranks) {
  const auto first = std::find_if(
      of_ranks.begin(), of_ranks.end(), [](const Complaint& c) { return !c.text.empty(); });
  std::vector<size_t> alike;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].text == first->text) alike.push_back(rank);
  }
  if (alike.size() == of_ranks.size()) return *first;
  std::string names = alike.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < alike.size(); ++i)
    names += Text(i == 0 ? "" : i + 1 == alike.size() ? " and " : ", ", alike[i]);
  return {first->code, first->exit_code, Text(names, ": ", first->text)};
}

namespace {

// "rank 2 (host b)"; "ranks 0, 2 and 3"
std::string NamesOf(const std::vector<size_t>& ranks, const std::vector<std::string>& hosts) {
  if (ranks.size() == 1) return Text("rank ", ranks[0], " (host ", hosts[ranks[0]], ")");
  std::string names = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    names += Text(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return names;
}

Verdict CombineProblems(
    const std::vector<Verdict>& of_ranks, const Verdict& first,
    const std::vector<std::string>& hosts) {
  std::vector<size_t> alike;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Verdict& v = of_ranks[rank];
    if (v.exit_code == first.exit_code && v.problem == first.problem) alike.push_back(rank);
  }
  if (alike.size() == of_ranks.size()) return {first.exit_code, first.problem, ""};
  return {first.exit_code, Text(NamesOf(alike, hosts), ": ", first.problem), ""};
}

std::string FirstDifference(
    const std::string& ours, const std::string& theirs, const std::string& name) {
  std::istringstream a(ours), b(theirs);
  std::string line_a, line_b;
  while (std::getline(a, line_a) && std::getline(b, line_b)) {
    if (line_a != line_b) return Text("rank 0 has ", line_a, ", ", name, " has ", line_b);
  }
  return Text("rank 0 has other settings than ", name);
}

Verdict CheckSettings(const std::vector<Verdict>& of_ranks, const std::vector<std::string>& hosts) {
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const std::string &ours = of_ranks[0].settings, &theirs = of_ranks[rank].settings;
    if (ours == theirs) continue;
    return {
        kRanksDisagree,
        Text(
            "the ranks were started differently: ",
            FirstDifference(ours, theirs, NamesOf({rank}, hosts))),
        ""};
  }
  return {};
}

// Exit code, length of the problem, problem, settings.
std::string Pack(const Verdict& v) {
  return Text(v.exit_code, " ", v.problem.size(), " ", v.problem, v.settings);
}

Verdict UnpackVerdict(const std::string& bytes) {
  std::istringstream stream(bytes);
  Verdict v;
  size_t length = 0;
  stream >> v.exit_code >> length;
  const size_t begin = static_cast<size_t>(stream.tellg()) + 1;
  v.problem = bytes.substr(begin, length);
  v.settings = bytes.substr(begin + length);
  return v;
}

}  // namespace

Verdict Combine(
    const std::vector<Verdict>& of_ranks, const std::vector<std::string>& host_of_rank) {
  const auto first = std::find_if(
      of_ranks.begin(), of_ranks.end(), [](const Verdict& v) { return v.exit_code != kSuccess; });
  if (first != of_ranks.end()) return CombineProblems(of_ranks, *first, host_of_rank);
  return CheckSettings(of_ranks, host_of_rank);
}

Verdict AgreeOn(const Verdict& mine, Context& job) {
  std::vector<Verdict> of_ranks;
  for (const std::string& bytes : AllGatherBytes(job.world(), Pack(mine)))
    of_ranks.push_back(UnpackVerdict(bytes));
  std::vector<std::string> host_of_rank;
  for (const Host& host : job.hosts())
    host_of_rank.insert(host_of_rank.end(), size_t(host.slots), host.name);
  return Combine(of_ranks, host_of_rank);
}

// G. Fowler, L. C. Noll, K.-P. Vo: FNV-1a.
uint64_t Digest(const void* data, size_t bytes, uint64_t start) {
  constexpr uint64_t kPrime = 0x100000001b3;
  const auto* byte = static_cast<const uint8_t*>(data);
  uint64_t digest = start;
  for (size_t i = 0; i < bytes; ++i) digest = (digest ^ byte[i]) * kPrime;
  return digest;
}

uint64_t DigestOf(const std::vector<Parameter>& parameters) {
  uint64_t digest = kEmptyDigest;
  for (const Parameter& parameter : parameters)
    digest = Digest(parameter.value.data, parameter.value.bytes(), digest);
  return digest;
}

std::string ToHex(uint64_t digest) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << digest;
  return text.str();
}

std::string DifferenceBetween(const std::vector<uint64_t>& digests) {
  std::string others;
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] != digests[0]) others += Text(", rank ", rank, " has ", ToHex(digests[rank]));
  }
  if (others.empty()) return "";
  return Text(
      "the ranks hold different parameters: by digest, rank 0 has ", ToHex(digests[0]), others);
}

void CheckEqualOnAllRanks(uint64_t digest, Communicator& world) {
  std::vector<uint64_t> digests(static_cast<size_t>(world.size()));
  world.AllGather(Buffer(&digest, 1), Buffer(digests.data(), digests.size()));
  const std::string difference = DifferenceBetween(digests);
  if (!difference.empty()) throw Error(ErrorCode::kMismatch, difference);
}

}  // namespace dtrun::models
