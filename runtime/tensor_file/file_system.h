#ifndef DTRUN_RUNTIME_TENSOR_FILE_FILE_SYSTEM_H_
#define DTRUN_RUNTIME_TENSOR_FILE_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>

namespace dtrun::runtime {

/// File operations. Each throws Error kSystem with the path and the reason.

/// A file descriptor. The destructor closes it.
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

/// A file that is written from its beginning. To replace a file in one step, write the new file
/// under another name and rename it.
class OutputFile {
 public:
  /// Creates the file, or empties it.
  explicit OutputFile(const std::string& path);

  void Write(const void* data, uint64_t bytes);
  void WriteAt(uint64_t offset, const void* data, uint64_t bytes);
  /// Flushes the file to the disk and closes it.
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

/// The treatment of a path that is a symbolic link.
enum class Links { kFollow, kRefuse };

/// Reads a whole regular file. Throws Error kInvalidArgument for any other kind of file, and does
/// not wait for a FIFO.
FileBytes ReadWhole(const std::string& path, Links links);

/// Flushes the folder at `path`, so that renames in it survive a loss of power.
void SyncFolder(const std::string& path);
void Rename(const std::string& from, const std::string& to);
/// Exchanges `from` and `to`, which both exist, in one step. Returns false if the file system does
/// not support the exchange.
bool Exchange(const std::string& from, const std::string& to);
/// Creates the folder and all missing folders above it.
void MakeFolders(const std::string& path);
void MakeFolder(const std::string& path);
/// Creates a symbolic link at `path`, or replaces the link there. The new link has the path
/// `temporary` at first. Returns false if the link cannot be created.
bool PlaceLink(const std::string& target, const std::string& path, const std::string& temporary);

enum class PathKind { kNone, kFolder, kFile, kLink, kOther };
/// The kind of the entry at `path`. Does not follow links.
PathKind KindOf(const std::string& path);

/// "cannot write 'a/b': No space left on device"
std::string Reason(const char* what, const std::string& path, int error_number);

}  // namespace dtrun::runtime

#endif
