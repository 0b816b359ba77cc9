#ifndef DTRUN_BENCH_BENCHMARK_H_
#define DTRUN_BENCH_BENCHMARK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dtrun::bench {

using Words = std::vector<std::string>;

/// The variable that gets the value of an option.
using Variable =
    std::variant<bool*, int*, uint64_t*, double*, std::string*, std::vector<uint64_t>*, Words*>;

/// The values that an option accepts: all values of its type, some words, or a range of numbers.
template <class T>
using Range = std::pair<T, T>;  ///< from the least to the most
using Accepted = std::variant<std::monostate, Words, Range<int>, Range<uint64_t>, Range<double>>;

/// Whether --help shows the default value of an option.
enum class Default { kShown, kHidden };

/// The command line of a benchmark. The class hides the parser, because the parser's headers take
/// longer to compile than a benchmark. Variables outlive the set; one thread.
class OptionSet {
 public:
  /// If `name` is empty, --help shows the path that started the program.
  explicit OptionSet(const std::string& description, const std::string& name = "");
  ~OptionSet();

  /// Adds `flag` VALUE, which sets `variable`. A bool has no VALUE. Lists are split at commas.
  void Add(
      const std::string& flag, Variable variable, const std::string& help,
      const Accepted& accepted = {}, Default shown = Default::kShown);
  /// Adds `flag` VALUE, which may be given several times.
  void AddRepeated(const std::string& flag, Words& values, const std::string& help);
  /// Sets the name that --help shows for the value of an added option, instead of its type.
  void NameValue(const std::string& flag, const std::string& name);

  /// Parses the command line. If the program has to end, prints the help or the error and returns
  /// the exit status. Otherwise, returns nullopt.
  std::optional<int> Parse(int argc, char** argv);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

/// The CPU time of this host and of the calling process, since construction or `Restart()`. If
/// other processes used much CPU meanwhile, the figures of a benchmark are not valid.
class CpuWatch {
 public:
  CpuWatch() { Restart(); }
  void Restart();

  /// CPU seconds of all processes of this host, and of this process with its ended children.
  double HostSeconds() const;
  double OwnSeconds() const;
  /// Wall-clock seconds, times the number of CPUs of the host.
  double AvailableSeconds() const;

 private:
  double host_ = 0, own_ = 0, wall_ = 0;
};

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_BENCHMARK_H_
