#ifndef DTRUN_BENCH_BENCH_OPTIONS_H_
#define DTRUN_BENCH_BENCH_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dtrun::bench {

using Words = std::vector<std::string>;

/// Where the value of an option goes.
using Variable =
    std::variant<bool*, int*, uint64_t*, double*, std::string*, std::vector<uint64_t>*, Words*>;

/// What an option accepts of the values of its type: all, some words, or numbers.
template <class T>
using Range = std::pair<T, T>;  ///< from the least to the most
using Accepted = std::variant<std::monostate, Words, Range<int>, Range<uint64_t>, Range<double>>;

/// Whether --help shows the value that an option has if it is not given.
enum class Default { kShown, kHidden };

/// The command line of a benchmark. It keeps the parser out of the benchmarks' sources: its headers
/// take longer to compile than a benchmark. Variables outlive the set; one thread.
class OptionSet {
 public:
  /// Without a name, --help shows the path that the program was started with.
  explicit OptionSet(const std::string& description, const std::string& name = "");
  ~OptionSet();

  /// `flag` VALUE, written to `variable`; the flag alone for a bool. Lists are divided at commas.
  void Add(
      const std::string& flag, Variable variable, const std::string& help,
      const Accepted& accepted = {}, Default shown = Default::kShown);
  /// `flag` VALUE, as often as it is given.
  void AddRepeated(const std::string& flag, Words& values, const std::string& help);
  /// What --help calls the value of an option that has been added, instead of its type.
  void NameValue(const std::string& flag, const std::string& name);

  /// The exit status of a program that ends here, because --help was asked for or the command line
  /// is wrong; either has been printed. Nothing if the program goes on.
  std::optional<int> Parse(int argc, char** argv);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace dtrun::bench

#endif  // DTRUN_BENCH_BENCH_OPTIONS_H_
