#include "models/train/agreement.h"

#include <dtrun/objects.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "models/message_text.h"
#include "models/train/exit_codes.h"

namespace dtrun::models {
namespace {

enum Signal : int64_t { kNothing = 0, kStop = 1, kFailed = 2 };

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
  int64_t signal = failed() ? kFailed : std::exchange(stop_, false) ? kStop : kNothing;
  world_.AllReduce(Buffer(&signal, 1), ReduceOp::kMax);
  if (signal == kFailed) ThrowTogether();
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

}  // namespace dtrun::models
