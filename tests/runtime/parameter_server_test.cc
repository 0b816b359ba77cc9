// Parameter servers and workers as threads of this process, over real sockets, on one simulated
// host or on several.

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "dtrun/error.h"
#include "runtime/parameter_server/variable_client.h"
#include "runtime/parameter_server/variable_server.h"

namespace {

using namespace dtrun::runtime;
using dtrun::Buffer;
using dtrun::Error;
using dtrun::ErrorCode;
using dtrun::base::Text;

// Variables "w" (6, 2) and "b" (2), all of value 1.
struct ServedModel {
  std::vector<float> w = std::vector<float>(12, 1.0f), b = std::vector<float>(2, 1.0f);
  std::vector<Tensor> variables() {
    return {{"w", Buffer(w.data(), 12), {6, 2}}, {"b", Buffer(b.data(), 2), {2}}};
  }
};

const PartitionRule kCutW = {PartitionRule::Kind::kMinSize, 24};  // "w" has 48 bytes

// The job that all ranks share. All ranks are on one host, or each rank is on its own host.
struct Rig {
  explicit Rig(int size_in, int servers_in, bool apart_in = false)
      : size(size_in), servers(servers_in), apart(apart_in) {
    dtrun::ops::TcpPlace any{"127.0.0.1", 0};
    dtrun::ops::ListenOn(any, kListener);
    port = any.port;
  }

  ServerJob Job(int rank) {
    ServerJob job;
    job.job = Text("test.", ::getpid(), '.', reinterpret_cast<uintptr_t>(this));
    job.rank = rank;
    job.size = size;
    job.servers = servers;
    for (int i = 0; i < size; ++i) job.host_of_rank.push_back(apart ? i : 0);
    for (int i = 0; i < (apart ? size : 1); ++i) job.host_names.push_back(Text("h", i));
    job.first = {"127.0.0.1", port};
    job.secret = std::string(32, 's');
    job.timeout = std::chrono::seconds(timeout_s);
    job.log = [this](dtrun::base::LogLevel, const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    };
    return job;
  }
  std::unique_ptr<ParameterServer> Server(int rank, ServedModel& model, TrainingPlan plan) {
    plan.partition = kCutW;
    return std::make_unique<ParameterServer>(Job(rank), model.variables(), plan);
  }
  std::unique_ptr<ParameterClient> Client(
      int rank, ServedModel& model, PeerRole role = PeerRole::kWorker) {
    return std::make_unique<ParameterClient>(Job(rank), model.variables(), kCutW, role);
  }
  std::string Said() {
    const std::lock_guard lock(mutex);
    return said;
  }

  int size, servers, port = 0, timeout_s = 60;
  bool apart;
  std::mutex mutex;
  std::string said;
};

// Starts `server` with the update value -= gradient on every shard.
void StartSubtracting(ParameterServer& server, std::vector<Tensor> state = {}) {
  server.Start(
      [&server](const std::vector<const void*>& gradients) {
        for (size_t i = 0; i < gradients.size(); ++i) {
          const Buffer value = server.value(i);
          for (uint64_t k = 0; k < value.count; ++k)
            static_cast<float*>(value.data)[k] -= static_cast<const float*>(gradients[i])[k];
        }
      },
      std::move(state));
}

float* Floats(const Buffer& buffer) { return static_cast<float*>(buffer.data); }

// Element k of a gradient is (k + 1) / 1024, so the sums of a few gradients are exact.
void WriteGradient(ParameterClient& client) {
  for (size_t v = 0; v < 2; ++v)
    for (uint64_t k = 0; k < client.gradient(v).count; ++k)
      Floats(client.gradient(v))[k] = static_cast<float>(k + 1) / 1024;
}

void CheckValues(ParameterClient& client, uint64_t updates) {
  for (size_t v = 0; v < 2; ++v)
    for (uint64_t k = 0; k < client.value(v).count; ++k)
      CHECK(
          Floats(client.value(v))[k] ==
          1 - static_cast<float>(updates) * static_cast<float>(k + 1) / 1024);
}

// Works until no step is left. Returns the steps that this worker did.
std::vector<uint64_t> Work(ParameterClient& client) {
  std::vector<uint64_t> steps;
  while (const std::optional<uint64_t> step = client.NextStep()) {
    client.Pull();
    WriteGradient(client);
    client.Push();
    steps.push_back(*step);
  }
  return steps;
}

std::string CodeAndText(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return Text(static_cast<int>(error.code()), ": ", error.what());
  }
  return "no error";
}

void CheckTraining(Rig& rig) {
  ServedModel model;
  std::vector<std::unique_ptr<ParameterServer>> servers;
  for (int s = 0; s < rig.servers; ++s) {
    servers.push_back(rig.Server(s, model, {.first_step = 2, .steps = 42, .workers = 2}));
    StartSubtracting(*servers.back());
  }
  std::vector<uint64_t> done[2];
  std::vector<std::thread> workers;
  for (int w = 0; w < 2; ++w)
    workers.emplace_back([&, w] {
      ServedModel own;
      const auto client = rig.Client(rig.servers + w, own);
      done[w] = Work(*client);
    });
  ServedModel seen;
  CHECK(servers[0]->WaitFor(20) >= 20);
  CHECK(servers[0]->WaitFor(UINT64_MAX) == 42);
  auto reader = rig.Client(0, seen, PeerRole::kReader);
  CHECK(reader->Pull() == 40);
  CheckValues(*reader, 40);
  CHECK(reader->Progress().steps_done == 42);
  reader.reset();
  for (std::thread& worker : workers) worker.join();
  for (const auto& server : servers) server->Finish();
  std::vector<uint64_t> all = done[0];
  all.insert(all.end(), done[1].begin(), done[1].end());
  std::sort(all.begin(), all.end());
  std::vector<uint64_t> expected(40);
  std::iota(expected.begin(), expected.end(), 2);
  CHECK(all == expected);
  for (const auto& server : servers) {
    CHECK(server->statistics().updates == 40);
    CHECK(server->statistics().lost_workers == 0);
    const std::vector<uint64_t> staleness = server->staleness();
    CHECK(std::accumulate(staleness.begin(), staleness.end(), uint64_t{0}) == 40);
  }
  CHECK(rig.Said() == "");
}

TEST_CASE("workers push and pull until each step is done once") {
  SECTION("one server") {
    Rig rig(3, 1);
    CheckTraining(rig);
  }
  SECTION("two servers that share a variable") {
    Rig rig(4, 2);
    CheckTraining(rig);
  }
  SECTION("one host per rank") {
    Rig rig(4, 2, true);
    CheckTraining(rig);
  }
}

TEST_CASE("another worker repeats the step of a lost worker and the job goes on") {
  Rig rig(3, 1);
  ServedModel model;
  const auto server = rig.Server(0, model, {.steps = 10, .workers = 2});
  StartSubtracting(*server);
  ServedModel one, two;
  auto lost = rig.Client(1, one);
  const auto left = rig.Client(2, two);
  CHECK(lost->NextStep() == 0);
  lost->Pull();
  lost.reset();  // while the worker has a step
  std::vector<uint64_t> steps = Work(*left);
  std::sort(steps.begin(), steps.end());
  CHECK(steps == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(server->statistics().repeated_steps == 1);
  CHECK(server->statistics().lost_workers == 1);
  CHECK(
      rig.Said() ==
      "rank 1 on h0, a worker, has left; its step 0 is handed out again; 1 worker is left\n");
}

TEST_CASE("a server without workers fails with the number of finished steps") {
  Rig rig(2, 1);
  ServedModel model, own;
  const auto server = rig.Server(0, model, {.steps = 10});
  StartSubtracting(*server);
  auto client = rig.Client(1, own);
  client->NextStep();
  client.reset();
  CHECK(
      CodeAndText([&] { server->WaitFor(10); }) ==
      "3: no worker is left after 0 of 10 steps; start the job again (a job that saves checkpoints "
      "continues from the newest)");
}

TEST_CASE("a lost server is an error on the other server and the worker with advice to restart") {
  Rig rig(4, 2);
  ServedModel model, one, two;
  const auto first = rig.Server(0, model, {.steps = 10, .workers = 2});
  auto second = rig.Server(1, model, {.steps = 10, .workers = 2});
  StartSubtracting(*first);
  StartSubtracting(*second);
  const auto worker = rig.Client(2, one);
  worker->NextStep();
  second.reset();
  const std::string lost =
      "3: parameter server 1 (rank 1 on h0) is lost with its variables; start "
      "the job again (a job that saves checkpoints continues from the newest)";
  CHECK(CodeAndText([&] { first->WaitFor(10); }) == lost);
  CHECK(CodeAndText([&] {
          worker->Pull();
          worker->Pull();
        }).substr(0, 21) == "3: parameter server 0");
}

TEST_CASE("the staleness bound holds with a slow worker") {
  Rig rig(3, 1);
  ServedModel model, one, two;
  const auto server = rig.Server(0, model, {.steps = 40, .max_staleness = 1, .workers = 2});
  StartSubtracting(*server);
  auto slow = rig.Client(1, one);
  CHECK(slow->NextStep() == 0);
  slow->Pull();
  std::thread other([&] {
    const auto fast = rig.Client(2, two);
    Work(*fast);
  });
  while (server->statistics().updates < 1) std::this_thread::yield();
  WriteGradient(*slow);
  CHECK(slow->Push() == 1);  // the other worker was allowed one update and no second
  Work(*slow);
  slow.reset();
  other.join();
  server->Finish();
  CHECK(server->staleness().size() <= 2);
  CHECK(server->statistics().updates == 40);
}

TEST_CASE("a worker that does not finish its step within the time limit counts as lost") {
  Rig rig(3, 1);
  rig.timeout_s = 1;
  ServedModel model, one, two;
  const auto server = rig.Server(0, model, {.steps = 3, .workers = 2});
  StartSubtracting(*server);
  const auto hangs = rig.Client(1, one);
  hangs->NextStep();
  const auto other = rig.Client(2, two);
  CHECK(Work(*other).size() == 3);
  CHECK_THAT(rig.Said(), Catch::Contains("rank 1 on h0 has not done its step in 1 s"));
  CHECK_THAT(CodeAndText([&] { hangs->Pull(); }), Catch::StartsWith("3: parameter server 0"));
}

TEST_CASE("a rank with a different variable is refused with both descriptions") {
  Rig rig(2, 1);
  ServedModel model;
  const auto server = rig.Server(0, model, {.steps = 3});
  StartSubtracting(*server);
  std::vector<Tensor> other = model.variables();
  other[1].shape = {1, 2};
  CHECK(
      CodeAndText([&] { ParameterClient(rig.Job(1), other, kCutW, PeerRole::kWorker); }) ==
      "2: parameter server 0 has variable b: f32 (2) in 1 part, rank 1 on h0 has variable b: f32 "
      "(1, 2) in 1 part");
}

TEST_CASE("a reader can read the optimizer state of all servers") {
  Rig rig(3, 2);
  ServedModel model, own;
  float momentum[2] = {3, 4};
  uint64_t step = 5;
  std::vector<std::unique_ptr<ParameterServer>> servers;
  for (int s = 0; s < 2; ++s) {
    servers.push_back(rig.Server(s, model, {.steps = 1}));
    StartSubtracting(
        *servers.back(),
        {{Text("m/", s), Buffer(&momentum[s], 1), {1}}, {"step", Buffer(&step, 1), {1}}});
  }
  const auto reader = rig.Client(2, own, PeerRole::kReader);
  const TensorFile state = reader->ReadState();
  REQUIRE(state.tensors.size() == 4);
  CHECK(state.tensors[0].name == "m/0");
  CHECK(*static_cast<const float*>(state.tensors[2].buffer.data) == 4);
  CHECK(*static_cast<const uint64_t*>(state.tensors[3].buffer.data) == 5);
}

TEST_CASE("an update that fails ends the server with its error") {
  Rig rig(2, 1);
  ServedModel model, own;
  const auto server = rig.Server(0, model, {.steps = 1});
  server->Start(
      [](const std::vector<const void*>&) {
        throw Error(ErrorCode::kInvalidArgument, "the rate is no number");
      },
      {});
  const auto client = rig.Client(1, own);
  client->NextStep();
  client->Pull();
  CHECK_THAT(CodeAndText([&] { client->Push(); }), Catch::StartsWith("3: parameter server 0"));
  CHECK(CodeAndText([&] { server->WaitFor(1); }) == "1: the rate is no number");
}

// Does the steps of `epochs` epochs of 10 steps. Returns all of them.
std::vector<uint64_t> WorkInEpochs(ParameterClient& client, uint64_t epochs) {
  std::vector<uint64_t> steps;
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    while (const auto step = client.NextStep(10 * epoch, 10 * (epoch + 1))) {
      client.Pull();
      WriteGradient(client);
      client.Push();
      steps.push_back(*step);
    }
  }
  return steps;
}

TEST_CASE("without a number of steps the training ends when all workers have left") {
  Rig rig(3, 1);
  ServedModel model;
  const auto server = rig.Server(0, model, {.steps = TrainingPlan::kOpen, .workers = 2});
  StartSubtracting(*server);
  std::vector<uint64_t> done[2];
  std::vector<std::thread> workers;
  for (int w = 0; w < 2; ++w)
    workers.emplace_back([&, w] {
      ServedModel own;
      done[w] = WorkInEpochs(*rig.Client(1 + w, own), 3);
    });
  CHECK(server->WaitFor(UINT64_MAX) == 30);
  for (std::thread& worker : workers) worker.join();
  server->Finish();
  std::vector<uint64_t> all = done[0];
  all.insert(all.end(), done[1].begin(), done[1].end());
  std::sort(all.begin(), all.end());
  std::vector<uint64_t> expected(30);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(all == expected);
  CHECK(server->statistics().lost_workers == 0);
  CHECK(rig.Said() == "");
}

TEST_CASE("an epoch ends for a worker when the step of another worker is done") {
  Rig rig(3, 1);
  ServedModel model, one, two;
  const auto server = rig.Server(0, model, {.steps = TrainingPlan::kOpen, .workers = 2});
  StartSubtracting(*server);
  auto slow = rig.Client(1, one);
  CHECK(slow->NextStep(0, 10) == 0);
  slow->Pull();
  std::vector<uint64_t> steps;
  std::thread other([&] { steps = WorkInEpochs(*rig.Client(2, two), 1); });
  while (server->statistics().updates < 9) std::this_thread::yield();
  slow.reset();  // lost with its step
  other.join();
  std::sort(steps.begin(), steps.end());
  CHECK(steps == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(server->WaitFor(UINT64_MAX) == 10);
  server->Finish();
  CHECK(server->statistics().lost_workers == 1);
}

TEST_CASE("a worker may leave in the middle of an epoch after its push") {
  Rig rig(2, 1);
  ServedModel model, own;
  const auto server = rig.Server(0, model, {.steps = TrainingPlan::kOpen});
  StartSubtracting(*server);
  auto client = rig.Client(1, own);
  client->NextStep(0, 10);
  client->Pull();
  WriteGradient(*client);
  client->Push();
  client.reset();
  CHECK(server->WaitFor(UINT64_MAX) == 1);
  server->Finish();
}

// ---- between hosts ------------------------------------------------------------------------------

TEST_CASE("a connection without the job's secret is refused and does not disturb the job") {
  Rig rig(2, 1, true);
  ServedModel model, own;
  const auto server = rig.Server(0, model, {.steps = 4});
  StartSubtracting(*server);
  ServerJob stranger = rig.Job(1);
  stranger.secret = std::string(32, 'x');
  CHECK(
      CodeAndText(
          [&] { ParameterClient(stranger, model.variables(), kCutW, PeerRole::kWorker); }) ==
      "6: the process that listens as parameter server 0 (rank 0 on h0) does not know the secret "
      "of this job");
  const auto client = rig.Client(1, own);
  CHECK(Work(*client).size() == 4);
  CHECK_THAT(rig.Said(), Catch::Contains("the peer does not know the secret of this job"));
}

TEST_CASE("invalid or oversized messages end only their own connection") {
  Rig rig(2, 1, true);
  ServedModel model, own;
  const auto server = rig.Server(0, model, {.steps = 4});
  StartSubtracting(*server);
  const auto connect = [&rig] {
    std::string cause;
    return dtrun::ops::TryConnect(
        {"127.0.0.1", rig.port}, kListener,
        std::chrono::steady_clock::now() + std::chrono::seconds(10), cause);
  };
  for (const std::string& bytes : {std::string(64, 'G'), std::string("GET / HTTP/1.1\r\n\r\n")}) {
    const auto socket = connect();
    REQUIRE(socket.get() >= 0);
    REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
  }
  MessageStream large(connect());
  large.Send({.kind = MessageKind::kProof}, std::string(1 << 20, 'p'));
  large.Flush();
  const auto client = rig.Client(1, own);
  CHECK(Work(*client).size() == 4);
}

}  // namespace
