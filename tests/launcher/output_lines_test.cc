#include "launcher/output/output_lines.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <string>
#include <vector>

namespace dtrun::launcher {
namespace {

using namespace std::chrono_literals;

const OutputTime kOutputStart{};

std::string Bracket(int rank, OutputTime) { return "[" + std::to_string(rank) + "]"; }

TEST_CASE("a line is shown when it is complete even if another rank writes in between") {
  OutputLines lines(Bracket);
  CHECK(lines.Add(0, "ab", kOutputStart) == "");
  CHECK(lines.Add(1, "x\ny", kOutputStart) == "[1]x\n");
  CHECK(lines.Add(0, "c\n", kOutputStart) == "[0]abc\n");
  CHECK(lines.waiting());
  CHECK(lines.End(1) == "[1]y");
  CHECK_FALSE(lines.waiting());
}

TEST_CASE("an unfinished line is shown after a delay and continues without a second tag") {
  OutputLines lines(Bracket);
  CHECK(lines.Add(0, "continue? ", kOutputStart) == "");
  CHECK(lines.Expire(kOutputStart + 199ms) == "");
  CHECK(lines.Expire(kOutputStart + 200ms) == "[0]continue? ");
  CHECK(lines.Add(0, "yes\n", kOutputStart + 1s) == "yes\n");
}

TEST_CASE("an unfinished line that was shown ends when another rank writes") {
  OutputLines lines(Bracket);
  lines.Add(0, "continue? ", kOutputStart);
  lines.Expire(kOutputStart + 1s);
  CHECK(lines.Add(1, "x\n", kOutputStart + 1s) == "\n[1]x\n");
  CHECK(lines.Add(0, "yes\n", kOutputStart + 1s) == "[0]yes\n");
}

TEST_CASE("each step of a progress bar is shown") {
  OutputLines lines(Bracket);
  CHECK(lines.Add(0, "\r10 %", kOutputStart) == "[0]\r");
  CHECK(lines.Add(0, "\r20 %", kOutputStart) == "[0]10 %\r");
  CHECK(lines.Add(0, "\rdone\n", kOutputStart) == "[0]20 %\r[0]done\n");
}

TEST_CASE("a Windows line end stays together even if it arrives in two parts") {
  OutputLines lines(Bracket);
  CHECK(lines.Add(0, "a\r\nb\r", kOutputStart) == "[0]a\r\n");
  CHECK(lines.Add(0, "\n", kOutputStart) == "[0]b\r\n");
}

TEST_CASE("an unfinished line is shown at once when it reaches the limit") {
  OutputLines lines(Bracket);
  const std::string piece(OutputLines::kLongest / 2, 'x');
  CHECK(lines.Add(0, piece, kOutputStart) == "");
  CHECK(lines.Add(0, piece, kOutputStart) == "[0]" + piece + piece);
  CHECK_FALSE(lines.waiting());
}

TEST_CASE("each line keeps the time of its beginning") {
  OutputLines lines([](int, OutputTime time) {
    return std::to_string((time - kOutputStart) / std::chrono::milliseconds(1)) + " ";
  });
  lines.Add(0, "a", kOutputStart + 1ms);
  CHECK(lines.Add(0, "b\nc", kOutputStart + 5ms) == "1 ab\n");
  CHECK(lines.Add(0, "d\n", kOutputStart + 9ms) == "5 cd\n");
}

TEST_CASE("output of many ranks in random pieces is complete and in order for each rank") {
  std::mt19937 random(GENERATE(1, 2, 3, 4));
  const std::string alphabet = "ab\r\n";
  OutputLines lines(Bracket);
  std::vector<std::string> written(3), shown(3);
  std::string all;
  OutputTime now = kOutputStart;
  const auto take = [&](const std::string& text) { all += text; };
  for (int i = 0; i < 2000; ++i) {
    const int rank = static_cast<int>(random() % 3);
    std::string piece;
    for (size_t length = random() % 5; length > 0; --length)
      piece += alphabet[random() % alphabet.size()];
    written[static_cast<size_t>(rank)] += piece;
    take(lines.Add(rank, piece, now));
    now += std::chrono::milliseconds(random() % 100);
    take(lines.Expire(now));
  }
  for (int rank = 0; rank < 3; ++rank) take(lines.End(rank));
  // Reads the output back: "[r]" starts the bytes of rank r. A line end before "[r]" may be an
  // added one.
  size_t rank = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != '[') {
      shown[rank] += all[i];
      continue;
    }
    rank = static_cast<size_t>(all[i + 1] - '0');
    i += 2;
  }
  const auto without_ends = [](std::string text) {
    std::erase(text, '\n');
    return text;
  };
  for (size_t r = 0; r < 3; ++r) CHECK(without_ends(shown[r]) == without_ends(written[r]));
}

}  // namespace
}  // namespace dtrun::launcher
