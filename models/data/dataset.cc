#include "models/data/dataset.h"

#include <dtrun/error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <limits>
#include <memory>

#include "models/function_clones.h"
#include "models/message_text.h"

namespace dtrun::models {

namespace {

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string HowToGetIt(const std::string& directory) {
  if (directory != kFashionMnistDir) return "";
  return "; install it with: apt-get install dataset-fashion-mnist, or name another set with "
         "--data-dir";
}

std::string FindFile(const std::string& directory, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    if (Exists(Text(directory, "/", name, suffix))) return Text(directory, "/", name, suffix);
  }
  const std::string what =
      Exists(directory) ? "has neither this file nor this file with .gz" : "does not exist";
  throw Error(
      ErrorCode::kSystem,
      Text(directory, "/", name, ": not found: the folder ", what, HowToGetIt(directory)));
}

Images ReadImages(const std::string& directory, const std::string& split) {
  const std::string images_path = FindFile(directory, split + "-images-idx3-ubyte");
  const std::string labels_path = FindFile(directory, split + "-labels-idx1-ubyte");
  IdxArray pixels = ReadIdx(images_path, 3), labels = ReadIdx(labels_path, 1);
  if (pixels.dims[0] != labels.dims[0]) {
    throw Error(
        ErrorCode::kInvalidArgument, Text(
                                         labels_path, ": ", labels.dims[0], " labels, expected ",
                                         pixels.dims[0], " as there are images in ", images_path));
  }
  constexpr uint64_t kLargestSide = 1 << 15;
  if (std::max(pixels.dims[1], pixels.dims[2]) > kLargestSide) {
    throw Error(
        ErrorCode::kInvalidArgument,
        Text(
            images_path, ": images of ", pixels.dims[1], "x", pixels.dims[2], ", expected at most ",
            kLargestSide, " a side"));
  }
  Images images;
  images.count = pixels.dims[0];
  images.height = static_cast<int>(pixels.dims[1]);
  images.width = static_cast<int>(pixels.dims[2]);
  images.pixels = std::move(pixels.bytes);
  images.labels = std::move(labels.bytes);
  return images;
}

void CheckSameSize(const Dataset& data, const std::string& directory) {
  if (data.train.height == data.test.height && data.train.width == data.test.width) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          directory, "/t10k-images-idx3-ubyte: images of ", data.test.height, "x", data.test.width,
          ", expected ", data.train.height, "x", data.train.width, " as in the training set"));
}

void CheckTestLabels(const Dataset& data, const std::string& directory) {
  const auto found = std::find_if(
      data.test.labels.begin(), data.test.labels.end(),
      [&](uint8_t label) { return label >= data.classes; });
  if (found == data.test.labels.end()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      Text(
          directory, "/t10k-labels-idx1-ubyte: label ", int{*found}, " at item ",
          found - data.test.labels.begin(), ", expected at most ", data.classes - 1,
          " as in the training set"));
}

}  // namespace

Dataset LoadDataset(const std::string& directory) {
  Dataset data;
  data.train = ReadImages(directory, "train");
  data.test = ReadImages(directory, "t10k");
  data.classes = 1 + *std::max_element(data.train.labels.begin(), data.train.labels.end());
  CheckSameSize(data, directory);
  CheckTestLabels(data, directory);
  return data;
}

namespace {

// An IDX file starts with 0, 0, the element type (8: unsigned byte) and the number of dimensions.
// Then follow each dimension as a big-endian 32-bit number, and the elements.
constexpr uint32_t kUnsignedBytes = 0x0800;
// The buffer grows by this much. So a header that promises more than the file holds costs no
// memory.
constexpr uint64_t kChunk = 16 << 20;

[[noreturn]] void Unusable(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, Text(path, ": ", what));
}

[[noreturn]] void Unreadable(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kSystem, Text(path, ": cannot be read: ", why));
}

std::string Hex(uint32_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setw(8) << std::setfill('0') << value;
  return text.str();
}

// The bytes of a file in order. A gzipped file is inflated.
class InflatedFile {
 public:
  explicit InflatedFile(const std::string& path) : path_(path) {
    // Without O_NONBLOCK, opening a pipe waits for its other end.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) Unreadable(path, std::strerror(errno));
    struct stat status {};
    fstat(fd, &status);
    file_.reset(gzdopen(fd, "rb"));
    if (file_ == nullptr) {
      close(fd);
      Unreadable(path, "out of memory");
    }
    if (S_ISDIR(status.st_mode)) Unreadable(path, "it is a directory, expected a file");
    if (!S_ISREG(status.st_mode)) Unreadable(path, "it is a pipe or a device, expected a file");
    gzbuffer(file_.get(), 1 << 18);
  }

  // Reads up to `count` bytes; fewer only at the end of the file.
  uint64_t Read(uint8_t* out, uint64_t count) {
    uint64_t total = 0;
    while (total < count) {
      const auto wanted = static_cast<unsigned>(std::min(count - total, kChunk));
      const int got = gzread(file_.get(), out + total, wanted);
      if (got < 0) ThrowGzipError();
      if (got == 0) break;
      total += static_cast<uint64_t>(got);
    }
    CheckGzipEnd();
    return total;
  }

 private:
  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };

  // zlib first returns the bytes that it has, and only then reports a gzip stream cut short.
  void CheckGzipEnd() {
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) ThrowGzipError();
  }

  [[noreturn]] void ThrowGzipError() {
    int code = Z_OK;
    const std::string message = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) Unreadable(path_, std::strerror(errno));
    if (code == Z_BUF_ERROR)
      Unusable(path_, "truncated: the gzip stream ends early, expected a whole one");
    Unusable(path_, Text("damaged gzip stream (", message, "), expected a whole one"));
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
};

uint32_t ReadBigEndian(InflatedFile& file, const std::string& path, const std::string& what) {
  uint8_t b[4];
  const uint64_t got = file.Read(b, 4);
  if (got != 4)
    Unusable(
        path, Text("truncated in its header: found ", got, " bytes of the ", what, ", expected 4"));
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

std::vector<uint64_t> ReadDims(InflatedFile& file, const std::string& path, int dimensions) {
  std::vector<uint64_t> dims;
  for (int i = 0; i < dimensions; ++i) {
    dims.push_back(ReadBigEndian(file, path, Text("size of dimension ", i)));
    if (dims.back() == 0) Unusable(path, Text("dimension ", i, " is 0, expected at least 1"));
  }
  return dims;
}

std::string Times(const std::vector<uint64_t>& dims) {
  std::string text;
  for (uint64_t dim : dims) text += Text(text.empty() ? "" : "x", dim);
  return text;
}

uint64_t ByteCount(const std::vector<uint64_t>& dims, const std::string& path) {
  uint64_t count = 1;
  for (uint64_t dim : dims) {
    if (dim > std::numeric_limits<int64_t>::max() / count)
      Unusable(path, Text("its header promises ", Times(dims), " bytes, expected fewer than 2^63"));
    count *= dim;
  }
  return count;
}

std::vector<uint8_t> ReadBody(
    InflatedFile& file, const std::string& path, const std::vector<uint64_t>& dims) {
  const uint64_t expected = ByteCount(dims, path);
  std::vector<uint8_t> bytes;
  while (bytes.size() < expected) {
    const uint64_t have = bytes.size(), wanted = std::min(expected - have, kChunk);
    bytes.resize(have + wanted);
    const uint64_t got = file.Read(bytes.data() + have, wanted);
    if (got != wanted) {
      Unusable(
          path, Text(
                    "truncated: found ", have + got, " bytes after the header, expected ", expected,
                    " (", Times(dims), ")"));
    }
  }
  uint8_t more = 0;
  if (file.Read(&more, 1) != 0)
    Unusable(path, Text("bytes left over after the ", expected, " (", Times(dims), ") expected"));
  return bytes;
}

std::vector<uint64_t> ReadHeader(InflatedFile& file, const std::string& path, int dimensions) {
  const uint32_t magic = ReadBigEndian(file, path, "magic number");
  const uint32_t expected = kUnsignedBytes | static_cast<uint32_t>(dimensions);
  if (magic != expected) {
    Unusable(
        path, Text(
                  "magic number ", Hex(magic), ", expected ", Hex(expected),
                  " (IDX, unsigned bytes, ", dimensions, " dimensions)"));
  }
  return ReadDims(file, path, dimensions);
}

}  // namespace

IdxArray ReadIdx(const std::string& path, int dimensions) {
  InflatedFile file(path);
  IdxArray array;
  array.dims = ReadHeader(file, path, dimensions);
  array.bytes = ReadBody(file, path, array.dims);
  return array;
}

std::vector<uint64_t> ReadIdxDims(const std::string& path, int dimensions) {
  InflatedFile file(path);
  std::vector<uint64_t> dims = ReadHeader(file, path, dimensions);
  ByteCount(dims, path);
  return dims;
}

DTRUN_KERNEL void BytesToFloats(const uint8_t* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(bytes[i]) / 255.0f;
}

}  // namespace dtrun::models
