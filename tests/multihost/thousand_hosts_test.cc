// A job of very many hosts. It runs by itself: thousands of processes that end together keep every
// other job of the machine waiting for many seconds.

#include <catch2/catch.hpp>

#include "tests/multihost/rig.h"

namespace {

using namespace dtrun::testing;
using Catch::Matchers::Contains;

// The hosts are folders of h1, and the remote shell runs its command there.
TEST_CASE("a job of a thousand hosts starts, names its failed rank and leaves nothing") {
  if (Skipped()) return;
  const CommandResult result = Run(ScriptOnHosts(
      "printf '#!/bin/sh\nhost=$1; shift; export TMPDIR=/run/tmp/$host; mkdir -p $TMPDIR; exec sh "
      "-c "
      "\"$*\"\n' >/run/shell; chmod +x /run/shell; export OMPI_MCA_plm_rsh_agent=/run/shell; "
      "launcher/dtrun --launcher ssh --start-timeout 300 -H $(seq -s, -f far%g:1 1000) sh -c "
      "'[ $RANK = 500 ] && { sleep 10; exit 9; }; exec sleep 600'; echo code $?; "
      // The last processes may need a moment to end on a busy machine.
      "for i in $(seq 100); do pgrep 'dtrun|sleep' >/dev/null || break; sleep 0.1; done; "
      "pgrep -a 'dtrun|sleep' >&2; pgrep -c 'dtrun|sleep'; find /run/tmp -mindepth 2 | wc -l"));
  CAPTURE(result.err);
  CHECK(result.out == "code 9\n0\n0\n");
  CHECK_THAT(result.err, Contains("dtrun: rank 500 on far501 exited with code 9\n"));
}

}  // namespace
