// Timelines of ranks that are threads, started and stopped at run time.

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/trace_json.h"
#include "dtrun/error.h"
#include "ops/engine/progress_engine.h"
#include "ops/shm/shm_communicator.h"
#include "runtime/reducer/bucketed_reducer.h"
#include "runtime/timeline/job_timeline.h"
#include "tests/support/json.h"
#include "tests/support/subprocess.h"
#include "tests/support/thread_ranks.h"

namespace dtrun::testing {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using runtime::GradientReducer;
using runtime::Timeline;
using runtime::TraceBuffer;

struct TimelineRank {
  ops::Communicator& world;
  Timeline& timeline;

  void Start(const std::string& path) {
    timeline.Start(world, std::vector<int>(static_cast<size_t>(world.size())), path);
  }
};

// Returns the error of each rank, "" if the rank succeeds.
Texts OnTimelineRanks(int size, const std::function<void(TimelineRank)>& rank_main) {
  const base::SteadyClock clock;
  return RunRanks(size, [&](ops::Bootstrap& bootstrap) {
    ops::Engine engine(
        {.may_spin = false, .recorder = ops::FlightRecorder::InMemory(bootstrap.rank(), "here")},
        clock, [](auto, const auto&) {});
    engine.StartThread();
    Timeline timeline({bootstrap.rank(), size, "here"}, engine);
    const auto world =
        ops::CreateShmCommunicator(bootstrap, engine, ops::Members::World(bootstrap.size()));
    rank_main({*world, timeline});
    world->Barrier();
  });
}

std::string TimelineErrorOf(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

GradientReducer ReducerOf(TimelineRank rank, const Texts& names) {
  std::vector<runtime::Gradient> gradients;
  for (const std::string& name : names)
    gradients.push_back({name, Buffer(nullptr, 16, DType::kF32)});
  runtime::ReducerSettings settings{.op = ReduceOp::kSum, .bucket_bytes = 64, .rebuild = false};
  return GradientReducer(rank.world, gradients, settings, rank.timeline.ObserveReducer(names));
}

void TakeSteps(GradientReducer& reducer, size_t gradients, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (size_t i = gradients; i-- > 0;) reducer.MarkReady(i);
    reducer.Wait();
  }
}

// Checks that the file is valid. Returns the validator's summary.
std::string Validated(const std::string& path) {
  const CommandResult result =
      Run(Command{.argv = {"/usr/bin/python3", "tests/support/check_trace.py", path}});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  return result.out;
}

TEST_CASE("a timeline has the steps and marks and collectives of every rank tied by arrows") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace.json";
  const int size = GENERATE(2, 3);
  REQUIRE(OnTimelineRanks(size, [&](TimelineRank rank) {
            GradientReducer reducer = ReducerOf(rank, {"first", "second"});
            rank.Start(path);
            TakeSteps(reducer, 2, 5);
            rank.timeline.Stop();
            TakeSteps(reducer, 2, 1);  // not in the timeline
          }) == Texts(static_cast<size_t>(size)));
  const std::string found = Validated(path);
  CAPTURE(found);
  for (int rank = 0; rank < size; ++rank) {
    const std::string pid = std::to_string(rank);
    for (const char* line :
         {" X \"step\" 5\n", " X \"wait\" 5\n", " i \"first\" 5\n", " i \"second\" 5\n"})
      CHECK_THAT(found, Contains(pid + line));
    CHECK_THAT(found, Contains(pid + " X \"all_reduce\" 10\n"));
    CHECK_THAT(found, Contains(pid + " X \"compute\" "));
  }
  CHECK_THAT(found, Contains("\narrows 10\n") && Contains("\"dropped_records\": 0"));
}

TEST_CASE("two jobs of one process write a timeline each") {
  const TemporaryFolder folder;
  std::vector<std::thread> jobs;
  Texts errors[2];
  for (const int job : {0, 1})
    jobs.emplace_back([&, job] {
      errors[job] = OnTimelineRanks(2, [&](TimelineRank rank) {
        GradientReducer reducer = ReducerOf(rank, {"of job " + std::to_string(job)});
        rank.Start(folder.path() + "/" + std::to_string(job));
        TakeSteps(reducer, 1, 20);
        rank.timeline.Stop();
      });
    });
  for (std::thread& job : jobs) job.join();
  for (const int job : {0, 1}) {
    CHECK(errors[job] == Texts(2));
    const std::string found = Validated(folder.path() + "/" + std::to_string(job));
    CHECK_THAT(found, Contains("1 i \"of job " + std::to_string(job) + "\" 20\n"));
    CHECK_THAT(found, !Contains("of job " + std::to_string(1 - job)));
  }
}

TEST_CASE("each of five successive timelines has only the work of its time") {
  const TemporaryFolder folder;
  const auto path = [&](int i) { return folder.path() + "/" + std::to_string(i); };
  REQUIRE(OnTimelineRanks(2, [&](TimelineRank rank) {
            GradientReducer reducer = ReducerOf(rank, {"test_allreduce"});
            for (int i = 0; i < 5; ++i) {
              rank.Start(path(i));
              TakeSteps(reducer, 1, i + 1);
              if (i == 4)
                Expect(
                    TimelineErrorOf([&] { rank.Start(path(5)); })
                            .find(
                                "a timeline is already being written, "
                                "to '" +
                                path(4)) != std::string::npos,
                    "a second start is refused");
              TakeSteps(reducer, 1, 1);
              rank.timeline.Stop();
            }
          }) == Texts(2));
  for (int i = 0; i < 5; ++i) {
    const std::string found = Validated(path(i));
    const std::string times = std::to_string(i + 2) + "\n";
    CHECK_THAT(found, Contains("0 i \"test_allreduce\" " + times));
    CHECK_THAT(found, Contains("1 X \"all_reduce\" " + times));
    CHECK_THAT(found, Contains("0 X \"step\" " + times));
    CHECK_THAT(found, Contains("start_time_since_epoch_in_micros"));
  }
  CHECK(folder.Entries() == Texts{"0", "1", "2", "3", "4"});
}

TEST_CASE("a file that rank 0 cannot write is an error on all ranks and another start may follow") {
  const TemporaryFolder folder;
  const std::string good = folder.path() + "/good";
  REQUIRE(OnTimelineRanks(2, [&](TimelineRank rank) {
            const std::string error =
                TimelineErrorOf([&] { rank.Start(folder.path() + "/none/trace"); });
            Expect(error.find("/none/trace': No such file") != std::string::npos, error);
            Expect(
                TimelineErrorOf([&] { rank.timeline.Stop(); }) ==
                    "StopTimeline: no timeline is being written",
                "none was started");
            rank.Start(good);
            rank.world.Barrier();
            rank.timeline.Stop();
          }) == Texts(2));
  CHECK_THAT(Validated(good), Contains("0 X \"barrier\" 1\n"));
}

TEST_CASE("names may hold any bytes") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  std::string bytes;
  for (int byte = 1; byte < 256; ++byte) bytes += static_cast<char>(byte);
  REQUIRE(OnTimelineRanks(1, [&](TimelineRank rank) {
            GradientReducer reducer = ReducerOf(rank, {bytes, "\xc3\xa4 \"quoted\" \\"});
            rank.Start(path);
            TakeSteps(reducer, 2, 1);
            rank.timeline.Stop();
          }) == Texts(1));
  CHECK_THAT(Validated(path), Contains(R"(i "\u00e4 \"quoted\" \\" 1)"));
}

TEST_CASE("records that do not fit are counted and the rest is a valid timeline") {
  const auto buffer = TraceBuffer::InMemory({0, 1, "here"});
  buffer->TurnOn();
  const uint64_t most = base::kMostTraceSlots;
  for (uint64_t i = 0; i < most + 10; ++i) buffer->AddMark(1, 0, base::TimePoint());
  const auto trace = base::ReadTrace(buffer->data(), buffer->used_bytes());
  REQUIRE(trace);
  CHECK(trace->dropped >= 10);
  CHECK(trace->marks.size() + trace->dropped == most + 10);
  buffer->TurnOff();
  buffer->Clear();
  buffer->TurnOn();
  CHECK(base::ReadTrace(buffer->data(), buffer->used_bytes())->marks.empty());
}

TEST_CASE("an unfinished record is skipped and the records after it are read") {
  const auto buffer = TraceBuffer::InMemory({0, 1, "here"});
  buffer->TurnOn();
  buffer->AddText(base::TraceType::kCommunicator, 1, {}, "a communicator with a long name");
  buffer->AddText(base::TraceType::kCommunicator, 2, {}, "another");
  std::vector<base::TraceSlot> copy(buffer->used_bytes() / sizeof(base::TraceSlot) + 1);
  std::memcpy(static_cast<void*>(copy.data()), buffer->data(), buffer->used_bytes());
  const auto read = [&] { return base::ReadTrace(copy.data(), buffer->used_bytes()); };
  REQUIRE(read()->communicators.size() == 2);
  // Makes the first record unfinished, as a process leaves it when it is killed.
  for (base::TraceSlot& slot : copy) {
    base::TraceHead head = base::TraceHead::Unpack(slot.words[0]);
    if (head.type != base::TraceType::kCommunicator || head.id != 1) continue;
    head.type = base::TraceType::kBegun;
    slot.words[0] = head.Pack();
    break;
  }
  const auto left = read()->communicators;
  CHECK(left == std::map<uint32_t, std::string>{{2, "another"}});
}

TEST_CASE("arbitrary bytes in place of a trace are read without a crash") {
  std::vector<base::TraceSlot> noise(4096);
  auto& header = *reinterpret_cast<base::TraceHeader*>(noise.data());
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    uint64_t state = seed;
    for (base::TraceSlot& slot : noise)
      for (auto& word : slot.words) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        word = state >> (seed % 3 * 20) & ~(seed % 2 == 0 ? 0xf0u : 0u);
      }
    header.magic = base::kTraceMagic;
    header.used = noise.size();
    header.slot_count = noise.size();
    const size_t bytes = noise.size() * sizeof(base::TraceSlot);
    size_t written = 0;
    base::WriteTraceJson(
        {{{}, [&] { return base::ReadTrace(noise.data(), bytes); }}}, {},
        [&](const std::string& piece) { written += piece.size(); });
    CHECK(written > 0);
  }
  CHECK_FALSE(base::ReadTrace(noise.data(), 8));
}

}  // namespace
}  // namespace dtrun::testing
