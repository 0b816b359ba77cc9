// The answers of two host agents about their networks, and the networks that dtrun then chooses.

#include <nlohmann/json.hpp>

#include "launcher/networks/network_choice.h"
#include "launcher/networks/network_survey.h"
#include "tests/fuzz/refused.h"

using namespace dtrun;

FUZZ_TARGET(networks) {
  const auto said =
      nlohmann::json::parse(fuzz::TextOf(data, size), nullptr, /*allow_exceptions=*/false);
  if (!said.is_array()) return 0;
  // The hosts are addresses, so no name is resolved.
  launcher::NetworkSurvey survey({"10.9.0.1", "10.9.0.2"}, {true, false});
  size_t answers = 0;
  for (const nlohmann::json& answer : said) {
    const size_t host = answers++ % 2;
    fuzz::TakesOrRefuses([&] {
      try {
        if (answer.is_object() && survey.HearFacts(host, answer)) survey.PeersOf(1 - host);
        if (answer.is_array()) survey.HearRoutes(host, answer);
      } catch (const nlohmann::json::exception&) {  // not an answer
      }
    });
  }
  if (!survey.complete()) return 0;
  for (const launcher::HostNetworks& host : survey.hosts()) fuzz::Expect(host.sources.size() == 2);
  const launcher::NetworkChoice choice = launcher::ChooseNetworks(survey.hosts());
  fuzz::Expect(choice.addresses.size() == 2);
  fuzz::TakesOrRefuses(
      [&] {
        launcher::UseNetworks(
            survey.hosts(), {"eth0", "10.1.0.0/16"}, survey.hosts().front().interfaces);
      },
      size + 1000);
  return 0;
}
