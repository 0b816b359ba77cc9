#include "runtime/checkpoint/verdict.h"

#include <exception>
#include <new>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

// The code of an error, or 0, and the text that belongs to it.
std::string OutcomeOf(const std::function<std::string()>& act) {
  const auto failed = [](ErrorCode code, const char* what) {
    return std::string(1, static_cast<char>(code)) + what;
  };
  try {
    return std::string(1, '\0') + act();
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::kSystem, "out of memory");
  } catch (const std::exception& error) {
    return failed(ErrorCode::kSystem, error.what());
  }
}

std::string ResultOf(const std::string& outcome, const std::string& who) {
  std::string text = outcome.substr(1);
  if (outcome[0] != '\0') throw Error(static_cast<ErrorCode>(outcome[0]), who + text);
  return text;
}

}  // namespace

std::string OnRootForAll(ops::Communicator& communicator, const std::function<std::string()>& act) {
  const std::string mine = communicator.rank() == 0 ? OutcomeOf(act) : "";
  const auto outcome = ops::BroadcastBytes(communicator, mine.data(), mine.size(), 0);
  return ResultOf({static_cast<const char*>(outcome->data()), outcome->bytes()}, "");
}

std::vector<std::string> OnAllForAll(
    ops::Communicator& communicator, const std::function<std::string()>& act) {
  std::vector<std::string> outcomes = ops::AllGatherBytes(communicator, OutcomeOf(act));
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string who =
        rank == 0 ? "" : communicator.members().List({static_cast<int>(rank)}) + ": ";
    outcomes[rank] = ResultOf(outcomes[rank], who);
  }
  return outcomes;
}

}  // namespace dtrun::runtime
