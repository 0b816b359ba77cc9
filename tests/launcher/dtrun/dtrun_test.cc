// The arguments, environment, CPUs and rendezvous of a rank that dtrun has started.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <thread>

#include "base/launch_env.h"
#include "base/text.h"
#include "tests/launcher/dtrun/process_test.h"

namespace dtrun::testing {
namespace {

std::map<std::string, std::string> ReadEnvironment(const std::string& text) {
  std::map<std::string, std::string> environment;
  for (const std::string& line : base::Split(text, '\n'))
    environment[line.substr(0, line.find('='))] =
        line.substr(std::min(line.size(), line.find('=') + 1));
  return environment;
}

TEST_CASE("every rank runs and dtrun prints no line of its own") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(2, "echo rank $OMPI_COMM_WORLD_RANK");
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(LineCount(result.out) == 2);
  CHECK_THAT(result.out, Catch::Contains("rank 0\n") && Catch::Contains("rank 1\n"));
}

TEST_CASE("a job runs with more ranks than CPUs and than mpirun forks from one thread by default") {
  const DtrunTest test;
  const CommandResult result = test.RunScript(40, "sleep 0.3; echo x");
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 40);
  CHECK(result.err.empty());
}

TEST_CASE("arguments reach the program byte for byte") {
  const DtrunTest test;
  const Words arguments = {"",   "a b",    "$(id)", "x'y\"z", "n\nl",   "*",        "--",
                           ":",  "-np",    "9",     "-x",     "--tune", "nothing",  "-am",
                           "no", "--help", "-H",    "h:1",    "+",      "\xff\x01", "\\"};
  Words line = {"-np", "1", "sh", "-c", "for a in \"$@\"; do printf '<%s>' \"$a\"; done", "sh"};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::string expected;
  for (const std::string& argument : arguments) expected += "<" + argument + ">";
  const CommandResult result = test.Run(line);
  CHECK(result.out == expected);
  CHECK(result.err.empty());
}

TEST_CASE("environment variables of any name reach the ranks of this host byte for byte") {
  DtrunTest test;
  const std::string odd = "a b;c\nd 'e' \"f\" $(id) \\ =\xff\x01", large(100'000, 'x');
  test.environment = {
      {"ODD", odd}, {"LARGE", large}, {"EMPTY", ""}, {"BASH_FUNC_f%%", "() { :\n}"}, {"a.b", "1"}};
  const CommandResult result = test.Run(
      {"-np", "1", "-x", "ODD", "-x", "LARGE", "/usr/bin/python3", "-c",
       "import os, sys\n"
       "for name in [b'ODD', b'EMPTY', b'BASH_FUNC_f%%', b'a.b', b'LARGE']:\n"
       "    sys.stdout.buffer.write(b'<' + os.environb[name] + b'>')"});
  CHECK(result.err.empty());
  CHECK((result.out == "<" + odd + "><><() { :\n}><1><" + large + ">"));
}

TEST_CASE("a script runs by an absolute and by a relative path") {
  DtrunTest test;
  const std::string script = test.temp.Write("a script.sh", "#!/bin/sh\necho \"$0 $1\"\n", 0755);
  CHECK(test.Run({"-np", "1", script, "x"}).out == script + " x\n");
  test.folder = test.temp.path();
  CHECK(test.Run({"-np", "1", "./a script.sh", "x"}).out == "./a script.sh x\n");
}

TEST_CASE("stdin of the ranks is empty") {
  const DtrunTest test;
  CHECK(test.RunScript(2, "cat; echo end").out == "end\nend\n");
}

TEST_CASE("the environment tells a rank its job and the hosts and its number of threads") {
  const DtrunTest test;
  const auto environment = ReadEnvironment(test.Run({"-np", "1", "env"}).out);
  const auto launch = base::ReadLaunchEnv([&](const std::string& name) {
    const auto variable = environment.find(name);
    return variable == environment.end() ? std::nullopt : std::optional(variable->second);
  });
  REQUIRE(launch);
  CHECK(launch->job.size() == 32);
  CHECK_FALSE(launch->version.empty());
  CHECK(launch->hosts == std::vector<base::HostSlots>{{"localhost", 1}});
  CHECK(launch->terminal_columns == 0);
  CHECK(launch->threads >= 1);
  CHECK(environment.at("OMP_NUM_THREADS") == base::Text(launch->threads));
}

TEST_CASE("two jobs have different names") {
  const DtrunTest test;
  const std::string first = test.RunScript(1, "echo $DTRUN_JOB").out;
  CHECK(first != test.RunScript(1, "echo $DTRUN_JOB").out);
}

TEST_CASE("OMP_NUM_THREADS also sets the number of threads of dtrun") {
  DtrunTest test;
  test.environment = {{"OMP_NUM_THREADS", "5,2"}};
  CHECK(test.RunScript(1, "echo $OMP_NUM_THREADS $DTRUN_THREADS").out == "5,2 5\n");
}

TEST_CASE("with more ranks than CPUs each rank has one thread and all CPUs and yields when idle") {
  const DtrunTest test;
  const int ranks = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  const CommandResult result = test.RunScript(
      ranks,
      "echo $DTRUN_THREADS $OMPI_MCA_mpi_yield_when_idle $(grep Cpus_allowed: /proc/self/status)");
  const std::string line = result.out.substr(0, result.out.find('\n') + 1);
  CHECK_THAT(line, Catch::StartsWith("1 1 "));
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) all += line;
  CHECK(result.out == all);
}

TEST_CASE("ranks that fit on their host have separate CPUs") {
  const DtrunTest test;
  if (test.RunScript(1, "echo $DTRUN_THREADS").out == "1\n") return;  // one CPU cannot be divided
  const Words lines =
      base::Split(test.RunScript(2, "grep Cpus_allowed: /proc/self/status").out, '\n');
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] != lines[1]);
}

TEST_CASE("several names of this machine count as several hosts of the job") {
  const DtrunTest test;
  const CommandResult result =
      test.Run({"-H", "localhost:1,127.0.0.1:2", "sh", "-c", "echo $DTRUN_HOSTS"});
  CHECK(result.exit_code == 0);
  CHECK(LineCount(result.out) == 3);
  CHECK_THAT(result.out, Catch::StartsWith("localhost:1,127.0.0.1:2\n"));
}

TEST_CASE("the first host of the list has rank 0 even if it is not this machine") {
  DtrunTest test;
  // Replaces ssh: runs the command on this machine under another host name. If that is not allowed,
  // the test ends here.
  if (Run({{"unshare", "-u", "true"}}).exit_code != 0) return;
  test.temp.Write(
      "ssh",
      "#!/bin/bash\n"
      "while [[ $1 == -* ]]; do case $1 in -o) shift 2 ;; --) shift; break ;; *) shift ;; esac; "
      "done\n"
      "exec env -u MARK -u SOME_TOKEN unshare -u sh -c 'hostname \"$0\"; exec sh -c \"$1\"' \"$1\" "
      "\"${*:2}\"\n",
      0755);
  test.environment = {
      {"MARK", "a b"},
      {"SOME_TOKEN", "secret"},
      {"PATH", test.temp.path() + ":" + std::getenv("PATH")}};
  const CommandResult result = test.Run(
      {"-H", "h1.example.org:2,localhost:1", "sh", "-c",
       "echo $OMPI_COMM_WORLD_RANK $(hostname) \"$MARK\" $SOME_TOKEN", "sh", "a 'b'"});
  CHECK(result.err.empty());
  CHECK_THAT(
      result.out, Catch::Contains("0 h1.example.org a b\n") &&
                      Catch::Contains("1 h1.example.org a b\n") && Catch::Contains("2 "));
}

// Starts rank 0 on this machine under another host name and with an empty environment. Needs
// CanRename().
struct RemoteTest : DtrunTest {
  std::string agent = temp.Write(
      "agent",
      "#!/bin/bash\n"
      "exec env -i PATH=/usr/bin:/bin unshare -u sh -c 'hostname \"$0\"; exec sh -c \"$1\"' \"$1\" "
      "\"${*:2}\"\n",
      0755);

  CommandResult RunRemotely(const Words& options, const std::string& script) const {
    Words line = {"-H", "far:1,localhost:1", "--mpi-args", "--mca plm_rsh_agent " + agent};
    line.insert(line.end(), options.begin(), options.end());
    line.insert(line.end(), {"sh", "-c", "[ $RANK = 0 ] || exit 0; " + script});
    return Run(line);
  }
};

TEST_CASE("even the longest environment variables reach another host byte for byte") {
  if (!CanRename()) return;
  RemoteTest test;
  const std::string odd = "a;b  'c' \"d\" $(id) \n * =\\\t\xff";
  const std::string large(128 * 1024 - 10, 'x');  // close to the limit of Linux
  test.environment = {{"ODD", odd}, {"LARGE", large}, {"EMPTY", ""}};
  const CommandResult result =
      test.RunRemotely({}, "printf '%s|%s|%s' \"$ODD\" ${#LARGE} \"${EMPTY-unset}\"");
  CHECK(result.out == odd + "|" + std::to_string(large.size()) + "|");
  CHECK(result.err.empty());
}

TEST_CASE("secrets and device variables of this host reach another host only on request") {
  if (!CanRename()) return;
  RemoteTest test;
  test.environment = {
      {"MY_TOKEN", "t"}, {"CUDA_VISIBLE_DEVICES", "3"}, {"MARK", "m"}, {"API_KEY", "k"}};
  const std::string script = "echo \"$MY_TOKEN|$CUDA_VISIBLE_DEVICES|$MARK|$API_KEY\"";
  CHECK(test.RunRemotely({}, script).out == "||m|\n");
  CHECK(
      test.RunRemotely(
              {"-x", "CUDA_VISIBLE_DEVICES", "--env-allow", "*_TOKEN", "--env-deny", "MA?K"},
              script)
          .out == "t|3||\n");
}

TEST_CASE("shell and Python scripts find their rank in the environment") {
  DtrunTest test;
  test.environment = {{"RANK", "7"}, {"TF_CONFIG", "{}"}};  // left over in the user's shell
  const std::string shell = test.temp.Write(
      "train.sh", "#!/bin/sh\necho $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE\n", 0755);
  const CommandResult ranks = test.Run({"-np", "2", shell});
  CHECK_THAT(ranks.out, Catch::Contains("0/2 0/2\n") && Catch::Contains("1/2 1/2\n"));

  // Rank 0 listens at MASTER_ADDR and MASTER_PORT, as in PyTorch, and rank 1 connects.
  const std::string python = test.temp.Write("train.py", R"(
import json, os, socket, time
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
config = json.loads(os.environ["TF_CONFIG"])
assert config["task"] == {"type": "worker", "index": rank}, config
assert len(config["cluster"]["worker"]) == int(os.environ["WORLD_SIZE"])
if rank == 0:
    print(socket.create_server(where).accept()[0].recv(100).decode(), flush=True)
else:
    for attempt in range(100):
        try:
            socket.create_connection(where).sendall(b"hello from rank 1")
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
)");
  const CommandResult met = test.Run({"-np", "2", "python3", python});
  CHECK(met.out == "hello from rank 1\n");
  CHECK(met.err.empty());
}

TEST_CASE("MASTER_ADDR and MASTER_PORT of the user are kept") {
  DtrunTest test;
  test.environment = {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  CHECK(test.RunScript(1, "echo $MASTER_ADDR:$MASTER_PORT").out == "10.0.0.1:29500\n");
}

TEST_CASE("a job inside a job has its own rendezvous port and threads") {
  DtrunTest test;
  const CommandResult result = test.RunScript(
      1, "echo $MASTER_PORT $WORLD_SIZE; " + DtrunTest::Dtrun() +
             " -np 2 --threads 3 sh -c 'echo $MASTER_PORT $WORLD_SIZE $DTRUN_THREADS'");
  const Words lines = base::Split(result.out, '\n');
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[0], Catch::EndsWith(" 1"));
  CHECK_THAT(lines[1], Catch::EndsWith(" 2 3"));
  CHECK(lines[0].substr(0, 5) != lines[1].substr(0, 5));
}

TEST_CASE("library options reach the ranks and --threads overrides OMP_NUM_THREADS") {
  DtrunTest test;
  test.environment = {{"OMP_NUM_THREADS", "7"}, {"DTRUN_BACKEND", "mpi"}};
  const CommandResult result = test.Run(
      {"-np", "1", "--bucket-mb", "2", "--backend", "shm", "--threads", "3", "sh", "-c",
       "echo $DTRUN_BUCKET_BYTES $DTRUN_BACKEND $OMP_NUM_THREADS $DTRUN_THREADS"});
  CHECK(result.out == "2097152 shm 3 3\n");
  const CommandResult tuned = test.Run(
      {"-np", "1", "--bucket-mb", "auto", "--autotune", "--autotune-log-file", "l.csv", "sh", "-c",
       "echo $DTRUN_BUCKET_BYTES $DTRUN_AUTOTUNE $DTRUN_AUTOTUNE_LOG $DTRUN_AUTOTUNE_WIRE"});
  CHECK(tuned.out == "auto on l.csv\n");
}

TEST_CASE("--bind none pins no rank and --verbose reports the CPUs of each rank") {
  const DtrunTest test;
  const std::string all = Run({{"grep", "Cpus_allowed:", "/proc/self/status"}}).out;
  CHECK(
      test.Run({"-np", "2", "--bind", "none", "grep", "Cpus_allowed:", "/proc/self/status"}).out ==
      all + all);
  const CommandResult result = test.Run({"-np", "2", "--verbose", "--bind", "socket", "true"});
  CHECK_THAT(
      result.err, Catch::Contains("dtrun: rank 0 on localhost: CPU") &&
                      Catch::Contains("dtrun: rank 1 on localhost: CPU"));
}

TEST_CASE("--hostfile names the hosts that get the ranks") {
  const DtrunTest test;
  const std::string file =
      test.temp.Write("hosts", "localhost slots=1\n127.0.0.1 slots=1 max_slots=2\n");
  const CommandResult result = test.Run(
      {"--hostfile", file, "-np", "3", "--oversubscribe", "sh", "-c", "echo $DTRUN_HOSTS"});
  CHECK(LineCount(result.out) == 3);
  CHECK_THAT(result.out, Catch::StartsWith("localhost:2,127.0.0.1:1\n"));
  CHECK(test.Run({"--hostfile", file, "-np", "9", "true"}).exit_code == 2);
}

TEST_CASE("a job on one host needs no ssh") {
  DtrunTest test;
  const std::string mpirun = base::Split(Run({{"which", "mpirun"}}).out, '\n')[0];
  std::filesystem::create_symlink(mpirun, test.temp.path() + "/mpirun");
  test.environment = {{"PATH", test.temp.path()}};
  CHECK(test.Run({"-np", "1", "/bin/echo", "hi"}).out == "hi\n");
}

// mpirun called as /bin/mpirun takes "/" for the installation folder of Open MPI.
TEST_CASE("mpirun is found through a link to its folder") {
  DtrunTest test;
  if (!std::filesystem::exists("/bin/mpirun")) return;
  test.environment = {{"PATH", "/bin"}};
  const CommandResult result = test.Run({"-np", "1", "/bin/echo", "hi"});
  CHECK(result.err.empty());
  CHECK(result.out == "hi\n");
}

TEST_CASE("a job leaves no file in the temporary folder") {
  const DtrunTest test;
  CHECK(test.RunScript(2, "ls -d $TMPDIR/dtrun.*").exit_code == 0);  // during the job
  CHECK(test.RunScript(2, "exit 1").exit_code == 1);
  CHECK(test.temp.Entries().empty());
}

}  // namespace
}  // namespace dtrun::testing
