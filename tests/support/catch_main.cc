// Catch2's main function. Logs have the seconds of each case, which show where a slow test spends
// its time.

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().showDurations = Catch::ShowDurations::Always;
  return session.run(argc, argv);
}
