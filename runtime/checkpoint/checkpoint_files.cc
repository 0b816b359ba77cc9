// A save writes tensor files into a draft folder, and then commits the draft with a manifest. A
// load tries the candidates in order. It reads a candidate and verifies all of its bytes. The first
// valid checkpoint must match the tensors that were asked for. Only then does the load fill their
// buffers.

#include "runtime/checkpoint/checkpoint_files.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/job/rank_agreement.h"
#include "runtime/tensor_file/tensor_file.h"

namespace dtrun::runtime {
namespace {

using base::Text;

// "model.safetensors", "model-00001-of-00004.safetensors"
std::string FileName(size_t file, size_t files) {
  if (files == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name.data();
}

Manifest ManifestOf(const SaveJob& job, const std::vector<WrittenFile>& files) {
  Manifest manifest{
      .step = job.request.step,
      .value = job.request.value,
      .ranks = job.ranks,
      .metadata = job.request.metadata};
  for (size_t i = 0; i < files.size(); ++i)
    manifest.files.push_back({FileName(i, files.size()), files[i].bytes, files[i].header_crc});
  for (const Tensor& tensor : job.tensors)
    manifest.tensors.push_back({tensor.name, tensor.buffer.dtype, tensor.shape, {}});
  for (size_t file = 0; file < job.plan.size(); ++file)
    for (const TensorPiece& piece : job.plan[file])
      manifest.tensors[piece.tensor].pieces.push_back(
          {file, NameOfPiece(job.tensors[piece.tensor], piece), piece.count});
  return manifest;
}

// The file repeats the metadata and the step of the manifest, for readers of the file alone.
Metadata FileMetadata(const SaveJob& job) {
  Metadata metadata = job.request.metadata;
  metadata["dtrun.step"] = std::to_string(job.request.step);
  return metadata;
}

WrittenFile WriteFile(const SaveJob& job, const std::string& draft, size_t file) {
  return WriteTensorFile(
      Text(draft, '/', FileName(file, job.plan.size())), job.pieces, FileMetadata(job));
}

std::string FormatWritten(const WrittenFile& file) {
  return Text(file.bytes, ' ', file.header_crc);
}

WrittenFile ParseWritten(const std::string& text) {
  const std::vector<std::string> fields = base::Split(text, ' ');
  return {
      static_cast<uint64_t>(base::ParseInteger(fields.at(0)).value()),
      static_cast<uint32_t>(base::ParseInteger(fields.at(1)).value())};
}

Error NotSaved(const std::exception& error, const std::string& folder, const SaveJob& job) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return Error(
      ours == nullptr ? ErrorCode::kSystem : ours->code(),
      Text("checkpoint '", folder, '/', job.request.name, "' is not saved: ", error.what()));
}

}  // namespace

void WriteAlone(CheckpointFolder& folder, const SaveJob& job) {
  std::string draft;
  try {
    draft = folder.Begin(job.request.name);
    const WrittenFile written = WriteFile(job, draft, 0);
    folder.Commit(draft, job.request.name, ManifestOf(job, {written}));
  } catch (const std::exception& error) {
    if (!draft.empty()) folder.Discard(draft);
    throw NotSaved(error, folder.path(), job);
  }
}

void WriteTogether(
    ops::Communicator& communicator, CheckpointFolder* folder, const std::string& path,
    const SaveJob& job) {
  std::string draft;
  try {
    // Ranks may mount the shared folder at different paths, so rank 0 sends only the draft's name.
    draft = OnRootForAll(communicator, [&] {
      return std::filesystem::path(folder->Begin(job.request.name)).filename().string();
    });
    draft = Text(path, '/', draft);
    const auto rank = static_cast<size_t>(communicator.rank());
    const std::vector<std::string> told =
        OnAllForAll(communicator, [&] { return FormatWritten(WriteFile(job, draft, rank)); });
    OnRootForAll(communicator, [&] {
      std::vector<WrittenFile> files;
      for (const std::string& each : told) files.push_back(ParseWritten(each));
      folder->Commit(draft, job.request.name, ManifestOf(job, files));
      return std::string();
    });
  } catch (const std::exception& error) {
    if (folder != nullptr && !draft.empty()) folder->Discard(draft);
    throw NotSaved(error, path, job);
  }
}

namespace {

using base::Text;

[[noreturn]] void Refuse(const std::string& why) { throw Error(ErrorCode::kInvalidArgument, why); }

TensorFile ReadFile(const StoredCheckpoint& stored, const ManifestFile& told) {
  TensorFile file = ReadTensorFile(stored.path + "/" + told.name, Links::kRefuse);
  if (file.bytes != told.bytes)
    Refuse(Text(told.name, " has ", file.bytes, " bytes; expected ", told.bytes));
  if (file.header_crc != told.header_crc)
    Refuse(Text(
        told.name,
        " is not the file that was saved: found another header than the manifest lists"));
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

// The checkpoints to try, in order.
std::vector<StoredCheckpoint> Candidates(const CheckpointFolder& folder, const Wanted& wanted) {
  if (!wanted.name.empty()) {
    std::optional<StoredCheckpoint> found = folder.Find(wanted.name);
    if (found) return {std::move(*found)};
    std::vector<std::string> names;
    for (const StoredCheckpoint& stored : folder.List()) names.push_back(Quoted(stored.name));
    Refuse(Text(
        "checkpoint '", wanted.name, "' does not exist in '", folder.path(), "'; found ",
        names.empty() ? "no checkpoint" : Some(names)));
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
          Quoted(tensor.name), " is ", Describe(told.dtype, told.shape), " and not ",
          Describe(tensor.buffer.dtype, tensor.shape)));
    saved.erase(found);
  }
  if (!allow_unexpected)
    for (const auto& [name, tensor] : saved) unexpected.push_back(Quoted(name));
  std::vector<std::string> all;
  if (!different.empty()) all.push_back(Some(different));
  if (!missing.empty())
    all.push_back(Some(missing) + (missing.size() == 1 ? " is missing" : " are missing"));
  if (!unexpected.empty())
    all.push_back(
        Some(unexpected) + (unexpected.size() == 1 ? " is unexpected" : " are unexpected"));
  if (!all.empty()) Refuse("it does not fit the model: " + base::Join(all, "; "));
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

namespace {

constexpr uint64_t kWholeBelow = 1 << 20;  // bytes

bool IsWhole(const Tensor& tensor, const TensorPiece& piece) {
  return piece.count == tensor.buffer.count;
}

}  // namespace

std::vector<std::vector<TensorPiece>> PlanPieces(const std::vector<Tensor>& tensors, int parts) {
  uint64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.buffer.bytes();
  const uint64_t share = std::max<uint64_t>(
      1, (total + static_cast<uint64_t>(parts) - 1) / static_cast<uint64_t>(parts));
  std::vector<std::vector<TensorPiece>> plan(static_cast<size_t>(parts));
  // Byte `at` of the concatenated tensors belongs to part `at / share`.
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Buffer& buffer = tensors[i].buffer;
    const uint64_t size = SizeOf(buffer.dtype);
    uint64_t first = 0;
    do {
      const uint64_t part = std::min<uint64_t>(at / share, plan.size() - 1);
      uint64_t count = buffer.count - first;
      if (buffer.bytes() >= kWholeBelow && part + 1 < plan.size())
        count = std::min(count, ((part + 1) * share - at + size - 1) / size);
      plan[part].push_back({i, first, count});
      first += count;
      at += count * size;
    } while (first < buffer.count);
  }
  return plan;
}

std::string NameOfPiece(const Tensor& tensor, const TensorPiece& piece) {
  if (IsWhole(tensor, piece)) return tensor.name;
  return base::Text(tensor.name, '[', piece.first, ':', piece.first + piece.count, ']');
}

Tensor TensorOf(const Tensor& whole, const TensorPiece& piece) {
  return {
      NameOfPiece(whole, piece), whole.buffer.Slice(piece.first, piece.count),
      IsWhole(whole, piece) ? whole.shape : Shape{piece.count}};
}

}  // namespace dtrun::runtime
