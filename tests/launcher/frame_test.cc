#include "launcher/protocol/frame.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "launcher/support/launch_error.h"
#include "launcher/support/poller.h"

namespace dtrun::launcher {
namespace {

std::vector<Frame> ReadAll(FrameReader& reader) {
  std::vector<Frame> frames;
  while (const auto frame = reader.Next()) frames.push_back(*frame);
  return frames;
}

TEST_CASE("text in place of a message is reported with its first line") {
  const auto [text, quoted] = GENERATE(table<std::string, std::string>({
      {"Welcome to h2\nas of today\n", "'Welcome to h2'"},
      {"\r\n\n\nhello\n", "hello"},
      {std::string(5000, 'x'), "(5000 characters)"},
  }));
  FrameReader reader;
  reader.Feed(text.data(), text.size());
  CHECK_THROWS_WITH(
      reader.Next(), Catch::Contains("found the text") && Catch::Contains(quoted) &&
                         Catch::EndsWith("; expected a message of dtrun"));
}

TEST_CASE("frames arrive unchanged however the bytes are split") {
  const std::vector<Frame> sent = {
      {FrameType::kOutput, 3, std::string("\1a\0\n\xff", 5)},
      {FrameType::kPing},
      {FrameType::kJob, -1, std::string(70'000, 'x')},
      {FrameType::kEnded, 1'000'000, "{}"},
  };
  std::string bytes;
  for (const Frame& frame : sent) bytes += Encode(frame);
  const size_t piece = GENERATE(1, 2, 7, 4096, 1'000'000);
  FrameReader reader;
  std::vector<Frame> received;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string cut = bytes.substr(at, piece);
    reader.Feed(cut.data(), cut.size());
    for (const Frame& frame : ReadAll(reader)) received.push_back(frame);
  }
  CHECK(received == sent);
  CHECK_FALSE(reader.in_frame());
}

TEST_CASE("bytes that are no frame are refused before memory is allocated") {
  FrameReader reader;
  const std::string bytes = GENERATE(
      as<std::string>(), "Last login: Sat Nov 21", std::string("\xff\xff\xff\xff\x01\0\0\0\0", 9),
      std::string("\0\0\0\0\x77\0\0\0\0", 9));
  reader.Feed(bytes.data(), bytes.size());
  CHECK_THROWS_AS(reader.Next(), LaunchError);
}

TEST_CASE("the last frames of a side that has left arrive even if a frame to it cannot be sent") {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const std::string last = Encode({FrameType::kFlight, 1, "record"}) + Encode({FrameType::kDone});
  REQUIRE(write(ends[1], last.data(), last.size()) == static_cast<ssize_t>(last.size()));
  close(ends[1]);
  Poller poller;
  std::vector<FrameType> heard;
  int ended = 0;
  FrameStream stream(
      poller, ends[0], ends[0],
      [&](const Frame& frame) {
        CHECK(ended == 0);
        heard.push_back(frame.type);
      },
      [&](const std::string& why) {
        CHECK(why.empty());
        ++ended;
      });
  stream.Send({FrameType::kPing});
  for (int i = 0; i < 3; ++i) poller.Wait(std::chrono::milliseconds(10));
  CHECK(heard == std::vector<FrameType>{FrameType::kFlight, FrameType::kDone});
  CHECK(ended == 1);
  CHECK(stream.queued() == 0);
}

TEST_CASE("with a window no more bytes are on the way than the other side has read") {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Poller poller;
  std::vector<std::string> heard;
  FrameStream here(
      poller, ends[0], ends[0], [](const Frame&) {}, [](const std::string&) {});
  here.SetWindow();
  const std::string large(300'000, 'x');
  here.Send({FrameType::kWord, -1, large});
  here.Send({FrameType::kWord, -1, "last"});
  for (int i = 0; i < 10; ++i) poller.Wait(std::chrono::milliseconds(1));
  std::string first(1'000'000, '\0');
  const ssize_t came = recv(ends[1], first.data(), first.size(), MSG_PEEK);
  CHECK(came == static_cast<ssize_t>(FrameStream::kWindow));
  FrameStream there(
      poller, ends[1], ends[1], [&](const Frame& frame) { heard.push_back(frame.body); },
      [](const std::string&) {});
  there.SayWhatCame();
  for (int i = 0; i < 1000 && heard.size() < 2; ++i) poller.Wait(std::chrono::milliseconds(1));
  CHECK((heard == std::vector<std::string>{large, "last"}));
  CHECK(here.queued() == 0);
}

TEST_CASE("an incomplete frame waits for its missing bytes") {
  const std::string bytes = Encode({FrameType::kWelcome, 0, "{\"folder\": \"/tmp\"}"});
  FrameReader reader;
  reader.Feed(bytes.data(), bytes.size() - 1);
  CHECK(reader.Next() == std::nullopt);
  CHECK(reader.in_frame());
}

TEST_CASE("a body larger than the limit is not sent") {
  CHECK_THROWS_AS(Encode({FrameType::kFlight, 0, std::string(kMostBody + 1, 'x')}), LaunchError);
}

}  // namespace
}  // namespace dtrun::launcher
