#ifndef DTRUN_DETAIL_PARAMETER_STATE_H_
#define DTRUN_DETAIL_PARAMETER_STATE_H_

#include <dtrun/error.h>
#include <dtrun/optimizer.h>
#include <dtrun/tensors.h>
#include <dtrun/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dtrun {
namespace detail {

/// The name of a part of a variable that is cut between parameter servers:
/// "part_1_of_2/dense/kernel".
inline std::string ShardName(const std::string& variable, uint64_t part, uint64_t parts) {
  if (parts == 1) return variable;
  return "part_" + std::to_string(part) + "_of_" + std::to_string(parts) + "/" + variable;
}

/// The place of a shard: the elements [first, first + count) of `variable`, which has `whole`
/// elements. `value` is their memory on the server.
struct ShardPlace {
  std::string shard, variable;
  uint64_t first = 0, count = 0, whole = 0;
  size_t index = 0;  ///< of the variable
  Buffer value = {};
};

inline bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// The optimizer state of all servers in the form of a checkpoint, which does not depend on the
/// number of servers. Parts are concatenated: "momentum/part_1_of_2/kernel" becomes a part of
/// "momentum/kernel". State that belongs to no variable, for example a count of steps, comes from
/// the first server. Names begin with "optimizer/".
class GatheredState {
 public:
  explicit GatheredState(TensorFile parts) : parts_(std::move(parts)) {
    for (const NamedTensor& tensor : parts_.tensors()) Add(tensor);
    for (auto& [name, by_part] : pieces_) {
      uint64_t count = 0;
      for (const auto& [part, buffer] : by_part) count += buffer.count;
      const DType dtype = by_part.begin()->second.dtype;
      memory_.push_back(std::make_unique<char[]>(count * SizeOf(dtype) + 1));
      char* next = memory_.back().get();
      tensors_.emplace_back("optimizer/" + name, Buffer(next, count, dtype));
      for (const auto& [part, buffer] : by_part) {
        if (buffer.count > 0) std::memcpy(next, buffer.data, buffer.bytes());
        next += buffer.bytes();
      }
    }
  }

  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  // Removes "part_1_of_2/" from the name, if the name has it.
  void Add(const NamedTensor& tensor) {
    const std::string& name = tensor.name;
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find('/', begin), name.size());
      unsigned long long part = 0, parts = 0;
      const std::string word = name.substr(begin, end - begin);
      if (std::sscanf(word.c_str(), "part_%llu_of_%llu", &part, &parts) == 2 &&
          word + "/" == ShardName("", part, parts)) {
        pieces_[name.substr(0, begin) + name.substr(end + 1)].emplace(part, tensor.buffer);
        return;
      }
      begin = end + 1;
    }
    pieces_[name].emplace(0, tensor.buffer);
  }

  TensorFile parts_;
  std::map<std::string, std::map<uint64_t, Buffer>> pieces_;  // by name and part
  std::vector<NamedTensor> tensors_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

/// The reverse: memory for the state of whole variables, which a checkpoint fills, and the copy of
/// a server's parts from there.
class LoadedState {
 public:
  LoadedState(const std::vector<NamedBuffer>& state, const std::vector<ShardPlace>& places) {
    for (const NamedBuffer& own : state) Add(own, places);
  }

  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  void Take() {
    for (const Piece& piece : pieces_)
      if (piece.own.count > 0) std::memcpy(piece.own.data, piece.from, piece.own.bytes());
  }

 private:
  struct Piece {
    Buffer own;
    const char* from;
  };

  void Add(const NamedBuffer& own, const std::vector<ShardPlace>& places) {
    const ShardPlace* found = nullptr;  // the longest name that fits
    for (const ShardPlace& place : places)
      if (place.count < place.whole && EndsWith(own.name, "/" + place.shard) &&
          (found == nullptr || found->shard.size() < place.shard.size()))
        found = &place;
    std::string name = own.name;
    uint64_t first = 0, count = own.buffer.count;
    if (found != nullptr) {
      name = name.substr(0, name.size() - found->shard.size()) + found->variable;
      if (own.buffer.count != found->count)
        throw Error(
            ErrorCode::kUnavailable, "the state '" + own.name +
                                         "' has another size than its variable, which is cut "
                                         "between parameter servers; it cannot be loaded");
      first = found->first;
      count = found->whole;
    }
    const uint64_t bytes = SizeOf(own.buffer.dtype);
    memory_.push_back(std::make_unique<char[]>(count * bytes + 1));
    char* const whole = memory_.back().get();
    tensors_.emplace_back("optimizer/" + name, Buffer(whole, count, own.buffer.dtype));
    pieces_.push_back({own.buffer, whole + first * bytes});
  }

  std::vector<Piece> pieces_;
  std::vector<NamedTensor> tensors_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

}  // namespace detail
}  // namespace dtrun

#endif
