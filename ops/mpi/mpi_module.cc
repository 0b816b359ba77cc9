#include "ops/mpi/mpi_module.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/listen_filter.h"
#include "base/process.h"
#include "base/text.h"
#include "base/version.h"
#include "dtrun/error.h"
#include "ops/bootstrap/bootstrap.h"
#include "ops/mpi/mpi_wire.h"
#include "ops/wire/wire_group.h"

namespace dtrun::ops::mpi {

/// The bootstrap of all ranks of `comm`. On `comm`, messages with these tags belong to the
/// bootstrap alone. If a wait lasts longer than `timeout`, throws Error kTimeout with the ranks
/// that have not come.
class MpiBootstrap : public Bootstrap {
 public:
  static constexpr int kLengthTag = 1, kBytesTag = 2;

  MpiBootstrap(MPI_Comm comm, int rank, int size, base::Duration timeout)
      : comm_(comm), rank_(rank), size_(size), timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> AllGather(const std::string& bytes) override;
  std::unique_ptr<SegmentExchange> ConnectSegmentExchange(Bootstrap& ranks) override;

 private:
  void Exchange(int tag, const std::string& mine, std::vector<std::string>& all);

  MPI_Comm comm_;
  int rank_, size_;
  base::Duration timeout_;
};

}  // namespace dtrun::ops::mpi

namespace dtrun::ops {
namespace mpi {
namespace {

// The value of a parameter of Open MPI, from any of its sources; "" if there is no such parameter.
std::string ParameterOfMpi(const char* name) {
  int level = 0, index = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return "";
  std::string value;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    value.resize(static_cast<size_t>(std::max(count, 1)));
    if (MPI_T_cvar_read(handle, value.data()) != MPI_SUCCESS) value.clear();
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return value.substr(0, value.find('\0'));
}

// The list may also name interfaces.
std::vector<base::AddressBlock> BlocksOf(const std::string& list) {
  std::vector<base::AddressBlock> blocks = base::ParseAddressBlocks(list);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return blocks;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if (("," + list + ",").find(std::string(",") + each->ifa_name + ",") == std::string::npos)
      continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    blocks.push_back({ntohl(address->sin_addr.s_addr), ~uint32_t{0}});
  }
  freeifaddrs(all);
  return blocks;
}

// Limits Open MPI's listening sockets to the networks that it is to use (its parameter
// btl_tcp_if_include). Open MPI itself listens at all addresses of the host. The limited sockets
// are those that MPI_Init has made: `before` holds the listening sockets of this process before
// MPI_Init, in ascending order. If the parameter names no networks, all sockets stay as they are,
// as they do with other MPIs.
void NarrowListeners(const std::vector<int>& before) {
  const std::vector<base::AddressBlock> blocks = BlocksOf(ParameterOfMpi("btl_tcp_if_include"));
  if (blocks.empty()) return;
  for (const int socket : base::ListeningSockets())
    if (!std::binary_search(before.begin(), before.end(), socket))
      base::ListenOnlyAt(socket, blocks);
}

std::string NameOfLevel(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
  }
  return base::Text("MPI thread level ", level);
}

// The trainer's communicator, or MPI_COMM_WORLD if the trainer has passed none.
MPI_Comm CommOf(const MpiHandle& handle) {
  if (handle.comm == nullptr) return MPI_COMM_WORLD;
  if (!IsExpectedMpi(handle.library) || handle.bytes != sizeof(MPI_Comm)) {
    throw Error(
        ErrorCode::kInvalidArgument, base::Text(
                                         "the MPI_Comm belongs to ", NameOfLibrary(handle.library),
                                         " (", handle.bytes, " bytes); expected a communicator of ",
                                         ExpectedMpi(), " (", sizeof(MPI_Comm), " bytes)"));
  }
  MPI_Comm comm = MPI_COMM_NULL;
  std::memcpy(&comm, handle.comm, sizeof comm);
  if (comm == MPI_COMM_NULL)
    throw Error(
        ErrorCode::kInvalidArgument, "the MPI_Comm is MPI_COMM_NULL; expected a communicator");
  return comm;
}

// The loader may have found another MPI under the same name.
void CheckLibrary() {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  Check(MPI_Get_library_version(library, &length), "MPI_Get_library_version");
  CheckIsExpected(library);
}

// Before MPI_Init, MPI_COMM_WORLD is the only communicator.
void CheckIsWorld(MPI_Comm comm) {
  if (comm == MPI_COMM_WORLD) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "MPI is not initialised yet; expected MPI_COMM_WORLD, or MPI_Init before Init");
}

void CheckIsIntra(MPI_Comm comm) {
  int inter = 0;
  Check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
  if (inter == 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "the MPI_Comm is an inter-communicator; expected an intra-communicator");
}

void CheckNotFinalized(const char* before) {
  int finalized = 0;
  Check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized == 0) return;
  throw Error(ErrorCode::kInvalidArgument, base::Text("MPI_Finalize was called before ", before));
}

void CheckThread(int level) {
  int is_main = 0;
  Check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (is_main != 0 || level > MPI_THREAD_FUNNELED) return;
  throw Error(
      ErrorCode::kInvalidArgument, base::Text(
                                       "MPI was initialised at ", NameOfLevel(level),
                                       "; expected Init from the thread that called MPI_Init"));
}

// The state of MPI if a job of this process has initialised it. MPI can be initialised once per
// process, so it stays until the process ends. Then another job can be joined.
struct OwnMpi {
  std::atomic<bool> initialized{false};
  std::atomic<bool> left{false};  // from Shutdown to the next Init: MPI may be finalised
  pid_t process = 0;
};

OwnMpi& MpiOfThisProcess() {
  static OwnMpi own;
  return own;
}

// Finalises MPI if the rank has shut down. If it has not, MPI's launcher reports that the rank has
// not left in good order. A forked child is not a rank.
void FinalizeAtExit() {
  if (!MpiOfThisProcess().left || ::getpid() != MpiOfThisProcess().process) return;
  int finalized = 0;
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
}

// Open MPI would print a backtrace of tens of lines after the message of an uncaught exception. A
// value that the user has set stays.
void LeaveSignalsAlone() { ::setenv("OMPI_MCA_opal_signal", "", 0); }

void InitMpi(int wanted, int* level) {
  LeaveSignalsAlone();
  Check(MPI_Init_thread(nullptr, nullptr, wanted, level), "MPI_Init_thread");
  MpiOfThisProcess().initialized = true;
  MpiOfThisProcess().process = ::getpid();
  std::atexit(FinalizeAtExit);
}

// MPI calls this at the beginning of MPI_Finalize, while MPI still works.
int TellFinalized(MPI_Comm, int, void* of_job, void*) {
  static_cast<MpiWire*>(of_job)->SetFinalized();
  return MPI_SUCCESS;
}

class JobOfMpi : public MpiJob {
 public:
  JobOfMpi(const MpiHandle& handle, base::Duration timeout) {
    CheckLibrary();
    CheckNotFinalized("Init");
    int initialized = 0;
    Check(MPI_Initialized(&initialized), "MPI_Initialized");
    const MPI_Comm joined = CommOf(handle);
    if (initialized == 0) {
      CheckIsWorld(joined);
      // The engine's lock lets one thread at a time call MPI, unless the trainer also calls MPI.
      used_by_us_alone_ = handle.comm == nullptr;
      const int wanted = used_by_us_alone_ ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
      const std::vector<int> listening = base::ListeningSockets();
      InitMpi(wanted, &level_);
      NarrowListeners(listening);
    } else {
      Check(MPI_Query_thread(&level_), "MPI_Query_thread");
      CheckThread(level_);
      CheckIsIntra(joined);
      used_by_us_alone_ = MpiOfThisProcess().initialized && handle.comm == nullptr;
    }
    MpiOfThisProcess().left = false;
    comm_ = DuplicateOf(joined, timeout);
    Check(MPI_Comm_rank(MPI_COMM_WORLD, &launch_rank_), "MPI_Comm_rank");
    Check(MPI_Comm_size(MPI_COMM_WORLD, &launch_size_), "MPI_Comm_size");
    Check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    Check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    FindHost();
    bootstrap_ = std::make_unique<MpiBootstrap>(comm_, rank_, size_, timeout);
    auto of_job = std::make_unique<MpiWire>(comm_);
    wire_ = of_job.get();
    endpoint_ = std::make_shared<wire::Endpoint>(std::move(of_job), size_);
    Check(
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &TellFinalized, &keyval_, nullptr),
        "MPI_Comm_create_keyval");
    Check(MPI_Comm_set_attr(MPI_COMM_SELF, keyval_, wire_), "MPI_Comm_set_attr");
  }
  // Calls no function of MPI, because MPI may be finalised. Without Finalize, MPI keeps a pointer
  // to the messages and their memory, so the endpoint is never freed.
  ~JobOfMpi() override {
    if (comm_ != MPI_COMM_NULL) new std::shared_ptr<wire::Endpoint>(std::move(endpoint_));
  }

  Bootstrap& bootstrap() override { return *bootstrap_; }
  int host_leader() const override { return host_leader_; }
  std::string host_name() const override { return host_name_; }
  int launch_rank() const override { return launch_rank_; }
  int launch_size() const override { return launch_size_; }
  bool engine_thread_allowed() const override {
    return level_ == MPI_THREAD_MULTIPLE || (used_by_us_alone_ && level_ == MPI_THREAD_SERIALIZED);
  }
  std::string thread_level() const override { return NameOfLevel(level_); }
  bool carries() const override { return carries_; }

  std::unique_ptr<Communicator> CreateCommunicator(Engine& engine, Members members) override {
    carries_ = true;
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    return wire::CreateWireCommunicator(
        "mpi", endpoint_, *bootstrap_, std::move(all), engine, std::move(members));
  }
  void Finalize() override {
    CheckNotFinalized("Shutdown");
    wire_->Close(*endpoint_->mailroom);
    Check(MPI_Comm_delete_attr(MPI_COMM_SELF, keyval_), "MPI_Comm_delete_attr");
    Check(MPI_Comm_free_keyval(&keyval_), "MPI_Comm_free_keyval");
    Check(MPI_Comm_free(&comm_), "MPI_Comm_free");
    MpiOfThisProcess().left = MpiOfThisProcess().initialized.load();
  }
  void Abort(int code) override { MPI_Abort(comm_, code); }

 private:
  // MPI has no non-blocking call for this. All ranks have just come here, so the wait is short.
  void FindHost() {
    MPI_Comm host = MPI_COMM_NULL;
    Check(
        MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
    MPI_Group of_host = MPI_GROUP_NULL, of_job = MPI_GROUP_NULL;
    Check(MPI_Comm_group(host, &of_host), "MPI_Comm_group");
    Check(MPI_Comm_group(comm_, &of_job), "MPI_Comm_group");
    const int first = 0;
    Check(
        MPI_Group_translate_ranks(of_host, 1, &first, of_job, &host_leader_),
        "MPI_Group_translate_ranks");
    Check(MPI_Group_free(&of_host), "MPI_Group_free");
    Check(MPI_Group_free(&of_job), "MPI_Group_free");
    Check(MPI_Comm_free(&host), "MPI_Comm_free");
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    Check(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
    host_name_ = name;
  }

  bool used_by_us_alone_ = false, carries_ = false;
  int level_ = MPI_THREAD_SINGLE;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int keyval_ = MPI_KEYVAL_INVALID;
  int launch_rank_ = 0, launch_size_ = 1, rank_ = 0, size_ = 1, host_leader_ = 0;
  std::string host_name_;
  std::unique_ptr<MpiBootstrap> bootstrap_;
  std::shared_ptr<wire::Endpoint> endpoint_;
  MpiWire* wire_ = nullptr;  // of the endpoint
};

}  // namespace
}  // namespace mpi

namespace {

const MpiModule kModule = {
    .version = base::kVersion,
    .join = [](const MpiHandle& handle, base::Duration timeout) -> std::unique_ptr<MpiJob> {
      return std::make_unique<mpi::JobOfMpi>(handle, timeout);
    },
};

}  // namespace
}  // namespace dtrun::ops

extern "C" __attribute__((visibility("default"))) const dtrun::ops::MpiModule* dtrun_mpi_module() {
  return &dtrun::ops::kModule;
}

namespace dtrun::ops::mpi {

// A gather takes two rounds of messages between all pairs of ranks: the lengths, then the bytes.

namespace {

// The messages of one round. After a timeout, the round is never freed, because MPI still uses its
// memory.
struct Round {
  std::string mine;
  std::vector<std::string> all;
  std::vector<MPI_Request> receives, sends;  // by rank

  bool Done() {
    int received = 0, sent = 0;
    Check(
        MPI_Testall(Int(receives.size()), receives.data(), &received, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    Check(MPI_Testall(Int(sends.size()), sends.data(), &sent, MPI_STATUSES_IGNORE), "MPI_Testall");
    return received != 0 && sent != 0;
  }

  std::vector<int> Missing() {
    std::vector<int> missing;
    for (size_t r = 0; r < receives.size(); ++r) {
      int received = 0;
      MPI_Request_get_status(receives[r], &received, MPI_STATUS_IGNORE);
      if (received == 0) missing.push_back(static_cast<int>(r));
    }
    return missing;
  }
};

}  // namespace

void MpiBootstrap::Exchange(int tag, const std::string& mine, std::vector<std::string>& all) {
  auto round = std::make_unique<Round>();
  round->mine = mine;
  round->all = std::move(all);
  round->all[static_cast<size_t>(rank_)] = mine;
  round->receives.assign(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  round->sends = round->receives;
  for (int i = 1; i < size_; ++i) {
    const int from = (rank_ + size_ - i) % size_, to = (rank_ + i) % size_;
    std::string& bytes = round->all[static_cast<size_t>(from)];
    Check(
        MPI_Irecv(
            bytes.data(), Int(bytes.size()), MPI_BYTE, from, tag, comm_,
            &round->receives[static_cast<size_t>(from)]),
        "MPI_Irecv");
    Check(
        MPI_Isend(
            round->mine.data(), Int(round->mine.size()), MPI_BYTE, to, tag, comm_,
            &round->sends[static_cast<size_t>(to)]),
        "MPI_Isend");
  }
  if (!WaitUntil(timeout_, [&round] { return round->Done(); })) {
    const std::vector<int> missing = round.release()->Missing();
    throw Error(
        ErrorCode::kTimeout,
        base::Text(
            "waited too long for ", missing.empty() ? "the other ranks" : base::RankList(missing),
            " in Init"));
  }
  all = std::move(round->all);
}

std::vector<std::string> MpiBootstrap::AllGather(const std::string& bytes) {
  uint64_t length = bytes.size();
  std::vector<std::string> lengths(static_cast<size_t>(size_), std::string(sizeof length, '\0'));
  Exchange(kLengthTag, std::string(reinterpret_cast<const char*>(&length), sizeof length), lengths);
  std::vector<std::string> all;
  for (const std::string& text : lengths) {
    std::memcpy(&length, text.data(), sizeof length);
    all.emplace_back(length, '\0');
  }
  Exchange(kBytesTag, bytes, all);
  return all;
}

std::unique_ptr<SegmentExchange> MpiBootstrap::ConnectSegmentExchange(Bootstrap& ranks) {
  return ConnectSocketExchange(ranks, std::chrono::duration_cast<std::chrono::seconds>(timeout_));
}

}  // namespace dtrun::ops::mpi
