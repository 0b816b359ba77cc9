#ifndef DTRUN_RUNTIME_TENSOR_FILE_FILE_SYSTEM_H_
#define DTRUN_RUNTIME_TENSOR_FILE_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun::runtime {

/// Calls of the operating system. Each throws Error kSystem that names the path and the reason.

/// A file descriptor that is closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { Reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Reset();
    number_ = other.Release();
    return *this;
  }

  int number() const { return number_; }
  int Release() {
    const int number = number_;
    number_ = -1;
    return number;
  }

 private:
  void Reset();

  int number_;
};

/// A new file. Whatever was at its path before is replaced only by renaming.
class OutputFile {
 public:
  /// Makes the file, or empties it.
  explicit OutputFile(const std::string& path);

  void Write(const void* data, uint64_t bytes);
  void WriteAt(uint64_t offset, const void* data, uint64_t bytes);
  /// Returns when all of it is on the disk, and closes it.
  void Finish();

 private:
  [[noreturn]] void Fail() const;

  std::string path_;
  Descriptor file_;
};

struct FileBytes {
  std::unique_ptr<char[]> data;
  uint64_t size = 0;
};

/// Whether a symbolic link may stand for the file.
enum class Links { kFollow, kRefuse };

/// All of a regular file: Error kInvalidArgument for anything else, without waiting for a FIFO.
FileBytes ReadWhole(const std::string& path, Links links);

/// What was renamed in a folder stays so after a loss of power.
void SyncFolder(const std::string& path);
void Rename(const std::string& from, const std::string& to);
/// Puts `from` at the place of `to`, which exists, in one step, and `to` at that of `from`. False
/// where the file system cannot.
bool Exchange(const std::string& from, const std::string& to);
/// With all folders above it.
void MakeFolders(const std::string& path);
void MakeFolder(const std::string& path);
/// A symbolic link at `path`, also in the place of another. False where it cannot be.
bool PlaceLink(const std::string& target, const std::string& path, const std::string& temporary);

enum class PathKind { kNone, kFolder, kFile, kLink, kOther };
/// What is there itself, not what a link points to.
PathKind KindOf(const std::string& path);

/// "cannot write 'a/b': No space left on device"
std::string Reason(const char* what, const std::string& path, int error_number);

}  // namespace dtrun::runtime

#endif
