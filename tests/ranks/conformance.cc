// Every collective, type and size on the backend that the job runs on, compared with ==. Prints one
// line on rank 0:
// "<backend>: many checks, <m> wrong"; exits with 1 if any rank saw a wrong value.

#include <dtrun/dtrun.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

using dtrun::Buffer;
using dtrun::DType;
using dtrun::ReduceOp;

int64_t checks = 0, wrong = 0;

void Check(bool right) {
  ++checks;
  if (!right) ++wrong;
}

// Small integers: exact in every type, and so are their sums and products over up to 8 ranks.
int Value(int rank, uint64_t i) {
  return static_cast<int>((i * 5 + static_cast<uint64_t>(rank) * 3) % 3);
}

int Expected(ReduceOp op, int size, uint64_t i) {
  int result = Value(0, i);
  for (int r = 1; r < size; ++r) {
    const int v = Value(r, i);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage: result += v; break;
      case ReduceOp::kMin: result = v < result ? v : result; break;
      case ReduceOp::kMax: result = v > result ? v : result; break;
      case ReduceOp::kProduct: result *= v; break;
    }
  }
  return result;
}

constexpr uint64_t kCounts[] = {0, 1, 7, 1000, 4096, 4097, 100'003};

template <typename T>
void CheckAllReduce(dtrun::Communicator& comm, T* data) {
  for (const uint64_t count : kCounts) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      // Integers average exactly as C++ divides; of floats only powers of two stay exact.
      const bool power_of_two = (comm.size() & (comm.size() - 1)) == 0;
      if (op == ReduceOp::kAverage && std::is_floating_point_v<T> && !power_of_two) continue;
      for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<T>(Value(comm.rank(), i));
      comm.AllReduce(Buffer(data, count), op);
      for (uint64_t i = 0; i < count; ++i) {
        T expected = static_cast<T>(Expected(op, comm.size(), i));
        if (op == ReduceOp::kAverage)
          expected = static_cast<T>(expected / static_cast<T>(comm.size()));
        Check(data[i] == expected);
      }
    }
  }
}

template <typename T>
void CheckMoves(dtrun::Communicator& comm, T* data) {
  const auto size = static_cast<uint64_t>(comm.size());
  for (const uint64_t count : kCounts) {
    for (int root = 0; root < comm.size(); ++root) {
      for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<T>(Value(comm.rank(), i));
      comm.Broadcast(Buffer(data, count), root);
      for (uint64_t i = 0; i < count; ++i) Check(data[i] == static_cast<T>(Value(root, i)));
    }
    std::vector<T> all(count * size);
    for (uint64_t i = 0; i < count; ++i) data[i] = static_cast<T>(Value(comm.rank(), i));
    comm.AllGather(Buffer(data, count), Buffer(all.data(), all.size()));
    for (uint64_t r = 0; r < size; ++r) {
      for (uint64_t i = 0; i < count; ++i)
        Check(all[r * count + i] == static_cast<T>(Value(static_cast<int>(r), i)));
    }
  }
}

template <typename T>
void CheckType(dtrun::Communicator& comm) {
  std::vector<T> private_data(100'003);
  dtrun::Memory mapped = comm.Allocate(100'003 * sizeof(T));
  for (T* data : {private_data.data(), static_cast<T*>(mapped.data())}) {
    CheckAllReduce(comm, data);
    CheckMoves(comm, data);
  }
}

// Halves and bfloat16 have no C++ type here: 1.0 and its sum over up to 8 ranks are exact in both.
void CheckSixteenBits(dtrun::Communicator& comm, DType dtype, uint16_t one, const uint16_t* sums) {
  for (const uint64_t count : kCounts) {
    std::vector<uint16_t> data(count, one);
    comm.AllReduce(Buffer(data.data(), count, dtype), ReduceOp::kSum);
    for (const uint16_t value : data) Check(value == sums[comm.size()]);
    comm.AllReduce(Buffer(data.data(), count, dtype), ReduceOp::kMax);
    for (const uint16_t value : data) Check(value == sums[comm.size()]);
  }
}

void CheckBools(dtrun::Communicator& comm) {
  std::vector<uint8_t> data = {static_cast<uint8_t>(comm.rank() == 0), 1, 0};
  comm.AllReduce(Buffer(data.data(), 3, DType::kBool), ReduceOp::kMax);
  Check(data == std::vector<uint8_t>{1, 1, 0});
  data = {static_cast<uint8_t>(comm.rank() == 0), 1, 0};
  comm.AllReduce(Buffer(data.data(), 3, DType::kBool), ReduceOp::kProduct);
  Check(data == std::vector<uint8_t>{static_cast<uint8_t>(comm.size() == 1), 1, 0});
}

void CheckManyAtOnce(dtrun::Communicator& comm) {
  dtrun::Communicator other = comm.Duplicate();
  std::vector<std::vector<float>> data(40, std::vector<float>(50'000, 1.0f));
  std::vector<dtrun::Work> works;
  for (size_t k = 0; k < data.size(); ++k) {
    dtrun::Communicator& used = k % 2 == 0 ? comm : other;
    works.push_back(used.StartAllReduce(Buffer(data[k].data(), k % 3 == 0 ? 50'000 : 3)));
  }
  for (size_t k = works.size(); k-- > 0;) works[k].Wait();
  for (const auto& values : data) Check(values[2] == static_cast<float>(comm.size()));
}

}  // namespace

int main() {
  dtrun::Context job = dtrun::Init();
  dtrun::Communicator& comm = job.world();
  CheckType<uint8_t>(comm);
  CheckType<int8_t>(comm);
  CheckType<uint16_t>(comm);
  CheckType<int16_t>(comm);
  CheckType<uint32_t>(comm);
  CheckType<int32_t>(comm);
  CheckType<uint64_t>(comm);
  CheckType<int64_t>(comm);
  CheckType<float>(comm);
  CheckType<double>(comm);
  const uint16_t halves[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800};
  const uint16_t bfloats[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100};
  CheckSixteenBits(comm, DType::kF16, halves[1], halves);
  CheckSixteenBits(comm, DType::kBF16, bfloats[1], bfloats);
  CheckBools(comm);
  CheckManyAtOnce(comm);
  comm.AllReduce(Buffer(&wrong, 1));
  if (job.rank() == 0) {
    std::printf(
        "%s: %s checks, %lld wrong\n", comm.backend().c_str(), checks > 0 ? "many" : "no",
        static_cast<long long>(wrong));
  }
  job.Shutdown();
  return wrong == 0 ? 0 : 1;
}
