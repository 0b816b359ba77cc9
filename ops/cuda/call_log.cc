#include "ops/cuda/call_log.h"

#include <algorithm>
#include <atomic>

#include "base/text.h"

namespace dtrun::ops::cuda {

using base::Text;

struct CallLog::Entry {
  uint32_t number;
  base::Call call;
  uint64_t sends[kMostRanks], receives[kMostRanks];
};

struct CallLog::Page {
  Entry entries[kKept];
  uint8_t freed[kMostRegions];
};

CallLog::CallLog(std::vector<std::shared_ptr<Segment>> segments, int rank)
    : segments_(std::move(segments)), rank_(rank) {}

uint64_t CallLog::Bytes() { return sizeof(Page); }

CallLog::Page& CallLog::page(int rank) const {
  return *reinterpret_cast<Page*>(segments_[static_cast<size_t>(rank)]->data());
}

void CallLog::Write(uint32_t number, const Collective& collective) {
  Entry& entry = page(rank_).entries[number % kKept];
  std::atomic_ref(entry.number).store(0, std::memory_order_release);
  entry.call = CallOf(collective, rank_);
  std::copy(collective.send_counts.begin(), collective.send_counts.end(), entry.sends);
  std::copy(collective.receive_counts.begin(), collective.receive_counts.end(), entry.receives);
  std::atomic_ref(entry.number).store(number, std::memory_order_release);
}

void CallLog::MarkFreed(uint32_t region, bool freed) {
  std::atomic_ref(page(rank_).freed[region]).store(freed ? 1 : 0, std::memory_order_release);
}

bool CallLog::IsFreed(int rank, uint32_t region) const {
  return std::atomic_ref(page(rank).freed[region]).load(std::memory_order_acquire) != 0;
}

const CallLog::Entry* CallLog::Find(int rank, uint32_t number) const {
  Entry& entry = page(rank).entries[number % kKept];
  const bool there = std::atomic_ref(entry.number).load(std::memory_order_acquire) == number;
  return there && number != 0 ? &entry : nullptr;
}

std::string CallLog::Disagreement(const uint32_t* numbers, const Members& members) const {
  const auto size = static_cast<int>(segments_.size());
  std::vector<Called> called;
  for (int r = 0; r < size; ++r) {
    const Entry* entry = Find(r, numbers[r]);
    if (entry == nullptr)
      return Text(members.List({r}), " called something more than ", kKept, " calls ago");
    const uint8_t tables = entry->call.tables;
    called.push_back(
        {&entry->call, (tables & base::Call::kSends) != 0 ? entry->sends : nullptr,
         (tables & base::Call::kReceives) != 0 ? entry->receives : nullptr});
  }
  return Calls(called.data(), size).Disagreement(members);
}

bool CallLog::IsMessage(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry != nullptr && base::IsMessage(static_cast<base::CollectiveKind>(entry->call.kind));
}

std::string CallLog::Describe(int rank, uint32_t number) const {
  const Entry* entry = Find(rank, number);
  return entry == nullptr ? Text("call ", number) : base::Describe(entry->call);
}

}  // namespace dtrun::ops::cuda
