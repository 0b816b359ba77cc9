#include "runtime/checkpoint/checkpoint_writer.h"

#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/checkpoint/tensor_file.h"
#include "runtime/checkpoint/verdict.h"

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
    for (const Piece& piece : job.plan[file])
      manifest.tensors[piece.tensor].pieces.push_back(
          {file, NameOfPiece(job.tensors[piece.tensor], piece), piece.count});
  return manifest;
}

// A file on its own tells the same of itself as the manifest.
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
    // The name in the folder, which ranks may have mounted at different places.
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

}  // namespace dtrun::runtime
