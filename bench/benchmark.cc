#include "bench/benchmark.h"

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>

namespace dtrun::bench {

// ---- The command line ---------------------------------------------------------------------------

namespace {

CLI::Option* AddTo(CLI::App& app, const std::string& flag, bool* value, const std::string& help) {
  return app.add_flag(flag, *value, help);
}

template <class T>
CLI::Option* AddTo(CLI::App& app, const std::string& flag, T* value, const std::string& help) {
  return app.add_option(flag, *value, help);
}

template <class T>
CLI::Option* AddTo(
    CLI::App& app, const std::string& flag, std::vector<T>* values, const std::string& help) {
  return app.add_option(flag, *values, help)->delimiter(',');
}

void Check(CLI::Option&, std::monostate) {}
void Check(CLI::Option& option, const Words& words) { option.check(CLI::IsMember(words)); }
template <class T>
void Check(CLI::Option& option, const Range<T>& range) {
  option.check(CLI::Range(range.first, range.second));
}

}  // namespace

struct OptionSet::Parser {
  CLI::App app;
};

OptionSet::OptionSet(const std::string& description, const std::string& name)
    : parser_(new Parser{CLI::App(description, name)}) {}

OptionSet::~OptionSet() = default;

void OptionSet::Add(
    const std::string& flag, Variable variable, const std::string& help, const Accepted& accepted,
    Default shown) {
  CLI::Option& option =
      *std::visit([&](auto* value) { return AddTo(parser_->app, flag, value, help); }, variable);
  std::visit([&](const auto& each) { Check(option, each); }, accepted);
  if (shown == Default::kShown && !std::holds_alternative<bool*>(variable))
    option.capture_default_str();
}

void OptionSet::AddRepeated(const std::string& flag, Words& values, const std::string& help) {
  parser_->app.add_option(flag, values, help)->allow_extra_args(false);
}

void OptionSet::NameValue(const std::string& flag, const std::string& name) {
  parser_->app.get_option(flag)->type_name(name);
}

std::optional<int> OptionSet::Parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return parser_->app.exit(error);
  }
}

// ---- The CPU's other users ----------------------------------------------------------------------

namespace {

// Adds up the first line of /proc/stat: the time in which processes ran, and the time that the
// hypervisor took from them (steal). Interrupts do not count, because they carry the job's traffic
// between hosts and belong to no process.
double HostCpuSeconds() {
  std::ifstream stat("/proc/stat");
  std::string label;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  stat >> label >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  return (user + nice + system + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double CpuSecondsOf(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OwnCpuSeconds() { return CpuSecondsOf(RUSAGE_SELF) + CpuSecondsOf(RUSAGE_CHILDREN); }

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void CpuWatch::Restart() {
  host_ = HostCpuSeconds();
  own_ = OwnCpuSeconds();
  wall_ = WallSeconds();
}

double CpuWatch::HostSeconds() const { return HostCpuSeconds() - host_; }
double CpuWatch::OwnSeconds() const { return OwnCpuSeconds() - own_; }
double CpuWatch::AvailableSeconds() const {
  return (WallSeconds() - wall_) * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace dtrun::bench
