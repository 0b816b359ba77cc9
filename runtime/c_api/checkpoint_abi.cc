#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dtrun/c.h"
#include "dtrun/error.h"
#include "runtime/c_api/handles.h"
#include "runtime/checkpoint/checkpoint_manager.h"

struct dtrun_checkpoint_manager {
  dtrun::runtime::c_api::Owner owner;
  dtrun::runtime::CheckpointManager manager;
};

struct dtrun_checkpoint_list {
  std::vector<dtrun::runtime::CheckpointRecord> records;
  std::vector<std::vector<dtrun_metadata>> metadata;  // by record
  std::vector<dtrun_checkpoint> checkpoints;
};

struct dtrun_tensor_file {
  dtrun::runtime::TensorFile file;
  std::vector<dtrun_tensor> tensors;
  std::vector<dtrun_metadata> metadata;
};

namespace dtrun::runtime::c_api {

dtrun_tensor_file* NewTensorFile(TensorFile file) {
  auto made = std::make_unique<dtrun_tensor_file>();
  made->file = std::move(file);
  for (const Tensor& tensor : made->file.tensors)
    made->tensors.push_back(
        {tensor.name.c_str(), dtrun::detail::ToC(tensor.buffer), tensor.shape.data(),
         tensor.shape.size()});
  made->metadata = ToC(made->file.metadata);
  return made.release();
}

}  // namespace dtrun::runtime::c_api

namespace {

using dtrun::base::Text;
using dtrun::runtime::CheckpointManager;
using dtrun::runtime::CheckpointRecord;
using dtrun::runtime::c_api::CheckNotNull;
using dtrun::runtime::c_api::Destroy;
using dtrun::runtime::c_api::Guard;
using dtrun::runtime::c_api::ReadMetadata;
using dtrun::runtime::c_api::ReadSized;
using dtrun::runtime::c_api::ReadTensors;
using dtrun::runtime::c_api::Use;

dtrun::runtime::BestBy ToBest(int32_t best) {
  if (best < DTRUN_BEST_NONE || best > DTRUN_BEST_HIGHEST)
    throw dtrun::Error(
        dtrun::ErrorCode::kInvalidArgument,
        Text("best is ", best, "; expected one of DTRUN_BEST_NONE ... DTRUN_BEST_HIGHEST"));
  return static_cast<dtrun::runtime::BestBy>(best);
}

std::unique_ptr<dtrun_checkpoint_list> NewList(std::vector<CheckpointRecord> records) {
  auto list = std::make_unique<dtrun_checkpoint_list>();
  list->records = std::move(records);
  for (const CheckpointRecord& record : list->records)
    list->metadata.push_back(dtrun::runtime::c_api::ToC(record.metadata));
  for (size_t i = 0; i < list->records.size(); ++i) {
    const CheckpointRecord& record = list->records[i];
    list->checkpoints.push_back(
        {.name = record.name.c_str(),
         .path = record.path.c_str(),
         .refused = record.refused.empty() ? nullptr : record.refused.c_str(),
         .step = record.step,
         .value = record.value.value_or(0),
         .has_value = record.value ? 1 : 0,
         .reserved = 0,
         .bytes = record.bytes,
         .metadata = list->metadata[i].data(),
         .metadata_count = list->metadata[i].size()});
  }
  return list;
}

}  // namespace

dtrun_error* dtrun_checkpoint_manager_create(
    dtrun_communicator* communicator, const char* folder, const dtrun_checkpoint_options* options,
    dtrun_checkpoint_manager** manager) {
  return Guard([&] {
    CheckNotNull(folder, "folder");
    CheckNotNull(manager, "manager");
    const dtrun_checkpoint_options told = ReadSized(options, "dtrun_default_checkpoint_options()");
    dtrun_communicator& c = Use(communicator, "communicator");
    *manager = new dtrun_checkpoint_manager{
        c.owner, CheckpointManager(
                     *c.communicator, folder,
                     {.retention = {.max_to_keep = told.max_to_keep, .best = ToBest(told.best)},
                      .sharded = told.sharded != 0,
                      .read_only = told.read_only != 0},
                     c.owner.log)};
  });
}

dtrun_error* dtrun_checkpoint_manager_save(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_save_options* options) {
  return Guard([&] {
    const dtrun_save_options told = ReadSized(options, "dtrun_default_save_options()");
    dtrun::runtime::SaveRequest request{
        .name = told.name == nullptr ? Text("ckpt_", told.step) : told.name,
        .step = told.step,
        .metadata = ReadMetadata(told.metadata, told.metadata_count)};
    if (told.has_value != 0) request.value = told.value;
    Use(manager, "manager")
        .manager.Save(
            request, ReadTensors(tensors, tensor_count),
            told.asynchronous != 0 ? CheckpointManager::Mode::kInBackground
                                   : CheckpointManager::Mode::kNow);
  });
}

dtrun_error* dtrun_checkpoint_manager_wait(dtrun_checkpoint_manager* manager) {
  return Guard([&] { Use(manager, "manager").manager.Wait(); });
}

dtrun_error* dtrun_checkpoint_manager_list(
    dtrun_checkpoint_manager* manager, dtrun_checkpoint_list** list) {
  return Guard([&] {
    CheckNotNull(list, "list");
    *list = NewList(Use(manager, "manager").manager.List()).release();
  });
}

dtrun_error* dtrun_checkpoint_manager_load(
    dtrun_checkpoint_manager* manager, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_load_options* options, dtrun_checkpoint_list** list) {
  return Guard([&] {
    CheckNotNull(list, "list");
    const dtrun_load_options told = ReadSized(options, "dtrun_default_load_options()");
    const dtrun::runtime::Wanted wanted{
        .name = told.name == nullptr ? "" : told.name,
        .best = told.best != 0,
        .allow_unexpected = told.allow_unexpected != 0};
    *list =
        NewList(Use(manager, "manager").manager.Load(ReadTensors(tensors, tensor_count), wanted))
            .release();
  });
}

void dtrun_checkpoint_manager_destroy(dtrun_checkpoint_manager* manager) { Destroy(manager); }

size_t dtrun_checkpoint_list_count(const dtrun_checkpoint_list* list) {
  return list->checkpoints.size();
}

const dtrun_checkpoint* dtrun_checkpoint_list_at(const dtrun_checkpoint_list* list, size_t index) {
  return index < list->checkpoints.size() ? &list->checkpoints[index] : nullptr;
}

void dtrun_checkpoint_list_destroy(dtrun_checkpoint_list* list) { delete list; }

dtrun_error* dtrun_save_tensors(
    const char* path, const dtrun_tensor* tensors, size_t tensor_count,
    const dtrun_metadata* metadata, size_t metadata_count) {
  return Guard([&] {
    CheckNotNull(path, "path");
    dtrun::runtime::SaveTensorFile(
        path, dtrun::runtime::c_api::ReadTensors(tensors, tensor_count),
        dtrun::runtime::c_api::ReadMetadata(metadata, metadata_count));
  });
}

dtrun_error* dtrun_load_tensors(const char* path, dtrun_tensor_file** file) {
  return Guard([&] {
    CheckNotNull(path, "path");
    CheckNotNull(file, "file");
    *file = dtrun::runtime::c_api::NewTensorFile(
        dtrun::runtime::ReadTensorFile(path, dtrun::runtime::Links::kFollow));
  });
}

size_t dtrun_tensor_file_count(const dtrun_tensor_file* file) { return file->tensors.size(); }

const dtrun_tensor* dtrun_tensor_file_tensor(const dtrun_tensor_file* file, size_t index) {
  return index < file->tensors.size() ? &file->tensors[index] : nullptr;
}

size_t dtrun_tensor_file_metadata_count(const dtrun_tensor_file* file) {
  return file->metadata.size();
}

const dtrun_metadata* dtrun_tensor_file_metadata(const dtrun_tensor_file* file, size_t index) {
  return index < file->metadata.size() ? &file->metadata[index] : nullptr;
}

void dtrun_tensor_file_destroy(dtrun_tensor_file* file) { delete file; }
