// A checkpoint is written into a draft folder with a temporary name. A single rename then gives the
// draft its final name, so a checkpoint is complete or absent. A removal first renames the
// checkpoint to a temporary name, and then deletes it. So no folder with a temporary name is
// useful, and the next writer deletes them all.
//
// If the file system cannot exchange two folders, a checkpoint is replaced in two steps: NAME is
// renamed to .old-NAME, and the draft to NAME. If a process dies between the steps, the next writer
// renames .old-NAME back.

#include "runtime/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/tensor_file/file_system.h"

namespace dtrun::runtime {
namespace {

using base::JsonText;
using base::ParseJson;
using base::Text;

constexpr char kTemporary[] = ".tmp-";
constexpr char kReplaced[] = ".old-";  // only if two folders cannot be exchanged in one step
constexpr char kLatest[] = "latest";
constexpr char kBest[] = "best";
constexpr size_t kLongestName = 200;  // of 255; a temporary name has a prefix

std::vector<std::string> EntriesOf(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  if (error) throw Error(ErrorCode::kSystem, Reason("read", folder, error.value()));
  std::sort(names.begin(), names.end());
  return names;
}

// True if the folder has a manifest or a tensor file: it is, or was, a checkpoint.
bool LooksLikeCheckpoint(const std::string& path) {
  if (KindOf(path + "/" + kManifestName) != PathKind::kNone) return true;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with("model") && name.ends_with(".safetensors")) return true;
  }
  return false;
}

StoredCheckpoint Look(const std::string& name, const std::string& path) {
  StoredCheckpoint stored{.name = name, .path = path, .manifest = {}, .refused = ""};
  const std::string manifest = path + "/" + kManifestName;
  try {
    if (KindOf(path) == PathKind::kLink) {
      stored.refused = "it is a symbolic link; expected a folder";
    } else if (KindOf(manifest) == PathKind::kNone) {
      stored.refused = Text(kManifestName, " is missing");
    } else {
      const FileBytes bytes = ReadWhole(manifest, Links::kRefuse);
      stored.manifest = ParseManifest({bytes.data.get(), bytes.size});
      for (const ManifestFile& file : stored.manifest->files)
        if (KindOf(path + "/" + file.name) == PathKind::kNone)
          stored.refused = Text(file.name, " is missing");
    }
  } catch (const Error& error) {
    stored.refused = Text(kManifestName, ": ", error.what());
  }
  return stored;
}

uint64_t AgeOf(const StoredCheckpoint& stored) {
  return stored.manifest ? stored.manifest->sequence : UINT64_MAX;
}

}  // namespace

void CheckCheckpointName(const std::string& name) {
  const bool printable = std::none_of(
      name.begin(), name.end(), [](char c) { return c == '/' || (c >= 0 && c < ' '); });
  if (!name.empty() && name.size() <= kLongestName && name.front() != '.' && printable &&
      name != kLatest && name != kBest && IsUtf8(name))
    return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          "'", name, "' cannot be the name of a checkpoint; expected up to ", kLongestName,
          " bytes without '/', without '.' in front, and not 'latest' or 'best'"));
}

CheckpointRecord StoredCheckpoint::Record() const {
  CheckpointRecord record{.name = name, .path = path, .refused = refused};
  if (!manifest) return record;
  record.step = manifest->step;
  record.value = manifest->value;
  record.bytes = manifest->bytes();
  record.metadata = manifest->metadata;
  return record;
}

CheckpointFolder CheckpointFolder::OpenForWriting(
    const std::string& path, RetentionOptions retention) {
  MakeFolders(path);
  CheckpointFolder folder(path, retention);
  folder.lock_.emplace(path);
  folder.RemoveUnfinished();
  for (const StoredCheckpoint& stored : folder.List())
    if (stored.manifest)
      folder.next_sequence_ = std::max(folder.next_sequence_, stored.manifest->sequence + 1);
  return folder;
}

CheckpointFolder CheckpointFolder::OpenForReading(
    const std::string& path, RetentionOptions retention) {
  EntriesOf(path);
  return CheckpointFolder(path, retention);
}

void CheckpointFolder::RemoveUnfinished() {
  for (const std::string& name : EntriesOf(path_)) {
    std::error_code ignored;
    if (name.starts_with(kReplaced)) {
      const std::string original = PathOf(name.substr(sizeof kReplaced - 1));
      if (KindOf(original) == PathKind::kNone) {
        Rename(PathOf(name), original);
        continue;
      }
    }
    if (name.starts_with(kTemporary) || name.starts_with(kReplaced))
      std::filesystem::remove_all(PathOf(name), ignored);
  }
}

std::optional<StoredCheckpoint> CheckpointFolder::Find(const std::string& name) const {
  CheckCheckpointName(name);
  if (KindOf(PathOf(name)) == PathKind::kNone) return std::nullopt;
  return Look(name, PathOf(name));
}

std::vector<StoredCheckpoint> CheckpointFolder::List() const {
  std::vector<StoredCheckpoint> list;
  for (const std::string& name : EntriesOf(path_)) {
    if (name.front() == '.' || name == kLatest || name == kBest) continue;
    if (LooksLikeCheckpoint(PathOf(name))) list.push_back(Look(name, PathOf(name)));
  }
  std::stable_sort(
      list.begin(), list.end(), [](const auto& a, const auto& b) { return AgeOf(a) < AgeOf(b); });
  return list;
}

void CheckpointFolder::SortByValue(std::vector<StoredCheckpoint>* checkpoints) const {
  const double sign = retention_.best == BestBy::kLowest ? 1 : -1;
  const auto rank_of = [&](const StoredCheckpoint& stored) {
    // A checkpoint without a manifest may be the best.
    if (!stored.manifest) return -HUGE_VAL;
    return stored.manifest->value ? sign * *stored.manifest->value : HUGE_VAL;
  };
  std::stable_sort(checkpoints->begin(), checkpoints->end(), [&](const auto& a, const auto& b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) < rank_of(b) : AgeOf(a) > AgeOf(b);
  });
}

std::string CheckpointFolder::TemporaryPath(const std::string& name) {
  return PathOf(Text(kTemporary, ::getpid(), '-', ++temporaries_, '-', name));
}

std::string CheckpointFolder::Begin(const std::string& name) {
  const std::string path = PathOf(name);
  const PathKind kind = KindOf(path);
  if (kind != PathKind::kNone && (kind != PathKind::kFolder || !LooksLikeCheckpoint(path)))
    throw Error(
        ErrorCode::kInvalidArgument,
        Text("'", path, "' exists and is not a checkpoint; expected a free name"));
  const std::string draft = TemporaryPath(name);
  MakeFolder(draft);
  return draft;
}

void CheckpointFolder::Commit(
    const std::string& draft, const std::string& name, Manifest manifest) {
  manifest.sequence = next_sequence_;
  const std::string text = FormatManifest(manifest);
  OutputFile file(draft + "/" + kManifestName);
  file.Write(text.data(), text.size());
  file.Finish();
  SyncFolder(draft);
  const std::string path = PathOf(name);
  if (KindOf(path) == PathKind::kNone) {
    Rename(draft, path);
  } else if (!Exchange(draft, path)) {
    const std::string replaced = PathOf(kReplaced + name);
    Rename(path, replaced);
    try {
      Rename(draft, path);
    } catch (const Error&) {
      Rename(replaced, path);
      throw;
    }
    SyncFolder(path_);
    Discard(replaced);
  }
  SyncFolder(path_);
  ++next_sequence_;
  Discard(draft);  // after an exchange, the replaced checkpoint
  PlaceLinks(name);
}

void CheckpointFolder::Discard(const std::string& draft) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(draft, ignored);
}

const StoredCheckpoint* CheckpointFolder::Best(
    const std::vector<StoredCheckpoint>& checkpoints) const {
  const StoredCheckpoint* best = nullptr;
  if (retention_.best == BestBy::kNone) return best;
  for (const StoredCheckpoint& stored : checkpoints) {
    if (!stored.manifest || !stored.manifest->value) continue;
    const double value = *stored.manifest->value;
    const double before = best == nullptr ? value : *best->manifest->value;
    // Of equal values, the first is the best.
    const bool better = retention_.best == BestBy::kLowest ? value < before : value > before;
    if (best == nullptr || better) best = &stored;
  }
  return best;
}

// The links are a convenience, so an error in placing them is ignored.
void CheckpointFolder::PlaceLinks(const std::string& latest) {
  PlaceLink(latest, PathOf(kLatest), TemporaryPath(kLatest));
  if (retention_.best == BestBy::kNone) return;
  const std::vector<StoredCheckpoint> list = List();
  const StoredCheckpoint* best = Best(list);
  if (best != nullptr) PlaceLink(best->name, PathOf(kBest), TemporaryPath(kBest));
}

void CheckpointFolder::Remove(const std::string& name) {
  const std::string temporary = TemporaryPath(name);
  Rename(PathOf(name), temporary);
  std::filesystem::remove_all(temporary);
}

std::string CheckpointFolder::Prune() {
  if (retention_.max_to_keep == 0) return "";
  try {
    std::vector<StoredCheckpoint> list = List();
    std::erase_if(list, [](const StoredCheckpoint& stored) { return !stored.manifest; });
    const StoredCheckpoint* best = Best(list);
    for (size_t i = 0; i + retention_.max_to_keep < list.size(); ++i)
      if (&list[i] != best) Remove(list[i].name);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

using nlohmann::json;

std::string FormatRecords(const std::vector<CheckpointRecord>& records) {
  json list = json::array();
  for (const CheckpointRecord& record : records)
    list.push_back(
        {record.name, record.path, record.refused, record.step,
         record.value ? json(*record.value) : json(), record.bytes, record.metadata});
  return JsonText(list);
}

std::vector<CheckpointRecord> ParseRecords(const std::string& text) {
  std::vector<CheckpointRecord> records;
  for (const json& told : ParseJson(text)) {
    CheckpointRecord record{
        .name = told[0].get<std::string>(),
        .path = told[1].get<std::string>(),
        .refused = told[2].get<std::string>(),
        .step = told[3].get<uint64_t>(),
        .bytes = told[5].get<uint64_t>(),
        .metadata = told[6].get<Metadata>()};
    if (!told[4].is_null()) record.value = told[4].get<double>();
    records.push_back(std::move(record));
  }
  return records;
}

namespace {

using base::Text;

std::string Holder(int file) {
  std::array<char, 300> text{};
  const ssize_t got = ::pread(file, text.data(), text.size() - 1, 0);
  // The holder writes its name after it takes the lock, so the file may still be empty.
  return got > 0 ? std::string(text.data()) : "another process";
}

std::string Self() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return Text("process ", ::getpid(), " on ", host.data());
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (file_.number() < 0) throw Error(ErrorCode::kSystem, Reason("write", path, errno));
  while (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw Error(ErrorCode::kSystem, Reason("lock", path, errno));
    throw Error(
        ErrorCode::kUnavailable,
        Text(
            "checkpoint folder '", folder, "' is in use: ", Holder(file_.number()),
            " saves there; expected a folder for each job"));
  }
  // If the disk is full, the lock still holds, without this text.
  const std::string self = Self();
  if (::ftruncate(file_.number(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file_.number(), self.data(), self.size(), 0);
  }
}

}  // namespace dtrun::runtime
