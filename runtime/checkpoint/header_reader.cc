// The header is read event by event, never as a tree: what may come next is known at every point,
// so that the first thing that is not in the format ends it, however deep or large the rest is.

#include "runtime/checkpoint/header_reader.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"
#include "dtrun/error.h"

namespace dtrun::runtime {
namespace {

using base::Text;

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "the header: " + why);
}

// What is shown of a name that may be anything.
std::string Shown(const std::string& name) {
  constexpr size_t kMost = 100;
  return name.size() <= kMost ? name : name.substr(0, kMost) + "...";
}

DType DTypeNamed(const std::string& name, const std::string& tensor) {
  for (int32_t i = DTRUN_U8; i <= DTRUN_BOOL; ++i)
    if (name == SafetensorsName(static_cast<DType>(i))) return static_cast<DType>(i);
  throw Error(
      ErrorCode::kUnavailable, Text(
                                   "the header: tensor '", Shown(tensor), "' has dtype '",
                                   Shown(name), "', which dtrun has not"));
}

class HeaderEvents : public nlohmann::json::json_sax_t {
 public:
  SafetensorsHeader Take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ != Place::kEntry) {
      return Unexpected("an object");
    } else if (name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else {
      BeginTensor();
      place_ = Place::kTensor;
    }
    return true;
  }
  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(key).second) Refuse(Text("'", Shown(key), "' is there twice"));
      name_ = key;
      place_ = Place::kEntry;
    } else if (place_ == Place::kMetadata) {
      name_ = key;
      place_ = Place::kMetadataValue;
    } else {
      BeginMember(key);
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::kTensor) EndTensor();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadataValue) {
      if (!header_.metadata.emplace(name_, value).second)
        Refuse(Text("metadata '", Shown(name_), "' is there twice"));
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kDType) return Unexpected("a string");
    tensor_.dtype = DTypeNamed(value, tensor_.name);
    place_ = Place::kTensor;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeItems;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetItems;
    } else {
      return Unexpected("an array");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::kOffsetItems && offsets_.size() != 2)
      Refuse(Text("tensor '", Shown(tensor_.name), "' has not two data_offsets"));
    place_ = Place::kTensor;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShapeItems) {
      tensor_.shape.push_back(value);
    } else if (place_ == Place::kOffsetItems && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return Unexpected("a number");
    }
    return true;
  }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    Refuse(Text("no JSON in UTF-8 at byte ", at));
  }

 private:
  enum class Place {
    kStart,
    kTop,    // a name or the end
    kEntry,  // a tensor or the metadata
    kMetadata,
    kMetadataValue,
    kTensor,  // a member of it or its end
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kEnd,
  };

  bool Unexpected(const char* what) const {
    Refuse(Text(what, " where none is expected, near '", Shown(name_), "'"));
  }

  void BeginTensor() {
    if (name_.empty()) Refuse("a tensor has no name");
    tensor_ = {.name = name_, .dtype = DType::kU8, .shape = {}, .begin = 0, .end = 0};
    offsets_.clear();
    members_.clear();
  }
  void BeginMember(const std::string& member) {
    if (!members_.insert(member).second)
      Refuse(Text("tensor '", Shown(tensor_.name), "' has ", Shown(member), " twice"));
    if (member == "dtype") {
      place_ = Place::kDType;
    } else if (member == "shape") {
      place_ = Place::kShape;
    } else if (member == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      Refuse(Text(
          "tensor '", Shown(tensor_.name), "' has '", Shown(member),
          "'; expected dtype, shape and data_offsets"));
    }
  }
  void EndTensor() {
    if (members_.size() != 3)
      Refuse(Text("tensor '", Shown(tensor_.name), "' lacks its dtype, shape or data_offsets"));
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string name_;
  std::set<std::string> names_;
  TensorEntry tensor_{};
  std::vector<uint64_t> offsets_;
  std::set<std::string> members_;
};

}  // namespace

SafetensorsHeader ReadHeaderJson(std::string_view text) {
  HeaderEvents events;
  nlohmann::json::sax_parse(text, &events);
  return events.Take();
}

}  // namespace dtrun::runtime
