#include "runtime/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

[[noreturn]] void Refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

TensorFile ReadFile(const StoredCheckpoint& stored, const ManifestFile& told) {
  TensorFile file = ReadTensorFile(stored.path + "/" + told.name, Links::kRefuse);
  if (file.bytes != told.bytes)
    Refuse(Text(told.name, " has ", file.bytes, " bytes; expected ", told.bytes));
  if (file.header_crc != told.header_crc)
    Refuse(Text(told.name, " is not the file that was saved: its header is another one"));
  return file;
}

// "a, b, c and 4 more"
std::string Some(const std::vector<std::string>& items) {
  constexpr size_t kMost = 5;
  std::vector<std::string> shown(
      items.begin(), items.begin() + static_cast<ptrdiff_t>(std::min(kMost, items.size())));
  const std::string rest =
      items.size() > kMost ? Text(" and ", items.size() - kMost, " more") : std::string();
  return base::Join(shown, ", ") + rest;
}

std::string Quoted(const std::string& name) { return Text('\'', name, '\''); }

// In the order of trying.
std::vector<StoredCheckpoint> Candidates(const CheckpointFolder& folder, const Wanted& wanted) {
  if (!wanted.name.empty()) {
    std::optional<StoredCheckpoint> found = folder.Find(wanted.name);
    if (found) return {std::move(*found)};
    std::vector<std::string> names;
    for (const StoredCheckpoint& stored : folder.List()) names.push_back(Quoted(stored.name));
    Refuse(Text(
        "there is no checkpoint '", wanted.name, "' in '", folder.path(), "'; there ",
        names.empty() ? "are none" : "is " + Some(names)));
  }
  std::vector<StoredCheckpoint> list = folder.List();
  if (wanted.best) {
    folder.SortByValue(&list);
  } else {
    std::reverse(list.begin(), list.end());
  }
  return list;
}

}  // namespace

CheckpointContent::CheckpointContent(const StoredCheckpoint& stored) {
  if (!stored.refused.empty()) Refuse(stored.refused);
  manifest_ = *stored.manifest;
  for (const ManifestFile& told : manifest_.files) files_.push_back(ReadFile(stored, told));
  for (const ManifestTensor& tensor : manifest_.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      const Tensor& found = Find(piece);
      if (found.buffer.dtype != tensor.dtype || found.buffer.count != piece.count)
        Refuse(Text(
            "tensor '", piece.name, "' is ", Describe(found.buffer.dtype, found.shape),
            "; the manifest has ", piece.count, " elements of ", NameOf(tensor.dtype)));
    }
  }
}

const Tensor& CheckpointContent::Find(const ManifestPiece& piece) const {
  const std::vector<Tensor>& tensors = files_[piece.file].tensors;
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), piece.name,
      [](const Tensor& tensor, const std::string& name) { return tensor.name < name; });
  if (found == tensors.end() || found->name != piece.name)
    Refuse(Text(
        "tensor '", piece.name, "' of the manifest is not in ", manifest_.files[piece.file].name));
  return *found;
}

void CheckpointContent::CheckAgainst(
    const std::vector<Tensor>& asked, bool allow_unexpected) const {
  std::map<std::string, const ManifestTensor*> saved;
  for (const ManifestTensor& tensor : manifest_.tensors) saved[tensor.name] = &tensor;
  std::vector<std::string> missing, unexpected, different;
  for (const Tensor& tensor : asked) {
    const auto found = saved.find(tensor.name);
    if (found == saved.end()) {
      missing.push_back(Quoted(tensor.name));
      continue;
    }
    const ManifestTensor& told = *found->second;
    if (told.dtype != tensor.buffer.dtype || told.shape != tensor.shape)
      different.push_back(Text(
          Quoted(tensor.name), " is ", Describe(told.dtype, told.shape), " there and ",
          Describe(tensor.buffer.dtype, tensor.shape), " here"));
    saved.erase(found);
  }
  if (!allow_unexpected)
    for (const auto& [name, tensor] : saved) unexpected.push_back(Quoted(name));
  std::vector<std::string> all;
  if (!different.empty()) all.push_back(Some(different));
  if (!missing.empty()) all.push_back("it lacks " + Some(missing));
  if (!unexpected.empty()) all.push_back("it has besides " + Some(unexpected));
  if (!all.empty()) Refuse("it is one of another model: " + base::Join(all, "; "));
}

void CheckpointContent::CopyTo(const std::vector<Tensor>& asked) const {
  std::map<std::string, const ManifestTensor*> saved;
  for (const ManifestTensor& tensor : manifest_.tensors) saved[tensor.name] = &tensor;
  for (const Tensor& tensor : asked) {
    auto* next = static_cast<char*>(tensor.buffer.data);
    for (const ManifestPiece& piece : saved.at(tensor.name)->pieces) {
      const Buffer& from = Find(piece).buffer;
      if (from.bytes() > 0) std::memcpy(next, from.data, from.bytes());
      next += from.bytes();
    }
  }
}

std::vector<CheckpointRecord> LoadFrom(
    const CheckpointFolder& folder, const Wanted& wanted, const std::vector<Tensor>& asked) {
  std::vector<CheckpointRecord> records;
  std::vector<std::string> refusals;
  for (const StoredCheckpoint& stored : Candidates(folder, wanted)) {
    records.push_back(stored.Record());
    std::optional<CheckpointContent> content;
    try {
      content.emplace(stored);
    } catch (const Error& error) {
      records.back().refused = error.what();
      refusals.push_back(Text("'", stored.path, "' is not valid: ", error.what()));
      continue;
    }
    try {
      content->CheckAgainst(asked, wanted.allow_unexpected);
    } catch (const Error& error) {
      throw Error(error.code(), Text("checkpoint '", stored.path, "': ", error.what()));
    }
    content->CopyTo(asked);
    return records;
  }
  if (!refusals.empty()) Refuse("checkpoint " + base::Join(refusals, "; "));
  return records;
}

}  // namespace dtrun::runtime
