#include "runtime/checkpoint/checkpoint_record.h"

#include <nlohmann/json.hpp>

namespace dtrun::runtime {

using nlohmann::json;

std::string FormatRecords(const std::vector<CheckpointRecord>& records) {
  json list = json::array();
  for (const CheckpointRecord& record : records)
    list.push_back(
        {record.name, record.path, record.refused, record.step,
         record.value ? json(*record.value) : json(), record.bytes, record.metadata});
  return list.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<CheckpointRecord> ParseRecords(const std::string& text) {
  std::vector<CheckpointRecord> records;
  for (const json& told : json::parse(text)) {
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

}  // namespace dtrun::runtime
