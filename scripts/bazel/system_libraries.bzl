"""Local repositories for the libraries that the system's package manager installs.

Each repository symlinks the headers it needs (so that no directory of this machine enters a compile line) and names the
shared object to link. A required library that is not there ends the build with one line naming the package; CUDA is
found, not demanded: without it `@cuda//:found` is false and the `no_cuda.cc` twins are built. So is LibTorch: without
it the targets that need it are skipped (libtorch.bzl).
"""

_LIBRARY = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "{name}",
    hdrs = glob(["include/**"], allow_empty = True),
    defines = {defines},
    includes = {includes},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

def _need(ctx, header, package):
    for directory in ctx.attr.directories:
        if ctx.path(directory + "/" + header).exists:
            return directory
    fail("\n\n{} was not found in {}. Install it with: apt-get install {}   (or run scripts/quickstart)\n".format(
        header,
        " or ".join(ctx.attr.directories),
        package,
    ))

def _system_library_impl(ctx):
    directory = _need(ctx, ctx.attr.headers[0], ctx.attr.package)
    for header in ctx.attr.headers:
        ctx.symlink(directory + "/" + header, "include/" + header)
    ctx.file("BUILD.bazel", _LIBRARY.format(
        name = ctx.name,
        includes = repr(["include"]),
        defines = repr(ctx.attr.defines),
        linkopts = repr(ctx.attr.linkopts),
    ))

# `headers`: files or folders below one of `directories`; the first one tells whether the library is there.
system_library = repository_rule(
    implementation = _system_library_impl,
    local = True,
    attrs = {
        "directories": attr.string_list(default = ["/usr/include"]),
        "headers": attr.string_list(mandatory = True),
        "package": attr.string(mandatory = True),
        "defines": attr.string_list(),
        "linkopts": attr.string_list(),
    },
)

def _first_line(ctx, command):
    result = ctx.execute(command)
    return result.stdout.strip().split(" ")[0] if result.return_code == 0 else ""

def _open_mpi_impl(ctx):
    # Open MPI's own compiler wrapper knows where its headers and libraries are.
    include = _first_line(ctx, ["mpicc", "--showme:incdirs"]) if ctx.which("mpicc") else ""
    lib = _first_line(ctx, ["mpicc", "--showme:libdirs"]) if ctx.which("mpicc") else ""
    if not include or not ctx.path(include + "/mpi.h").exists:
        fail("\n\nOpen MPI's mpicc and mpi.h were not found. Install them with: " +
             "apt-get install libopenmpi-dev openmpi-bin   (or run scripts/quickstart)\n")
    for header in ["mpi.h", "mpi_portable_platform.h"]:
        if ctx.path(include + "/" + header).exists:
            ctx.symlink(include + "/" + header, "include/" + header)
    ctx.file("BUILD.bazel", _LIBRARY.format(
        name = ctx.name,
        includes = repr(["include"]),
        # mpi.h would otherwise pull in the C++ bindings that MPI removed in 2012.
        defines = repr(["OMPI_SKIP_MPICXX"]),
        linkopts = repr((["-L" + lib] if lib else []) + ["-lmpi"]),
    ))

open_mpi = repository_rule(implementation = _open_mpi_impl, local = True, environ = ["PATH"])

# The C interfaces alone: CUDA's C++ libraries beside them are 1,800 headers, and each that is declared is linked into
# the sandbox of each action that may include it.
def _take_cuda_headers(ctx, directory):
    for entry in ctx.path(directory).readdir():
        if entry.basename.endswith(".h") or entry.basename.endswith(".hpp"):
            ctx.symlink(entry, "include/" + entry.basename)
    ctx.symlink(directory + "/crt", "include/crt")

    # CUDA 13 has moved <nv/target>.
    moved = directory + "/cccl/nv"
    ctx.symlink(moved if ctx.path(moved).exists else directory + "/nv", "include/nv")

def _cuda_impl(ctx):
    candidates = [ctx.os.environ[name] for name in ["CUDA_HOME", "CUDA_PATH"] if name in ctx.os.environ]
    found = ""
    for directory in candidates + ["/usr/local/cuda", "/opt/cuda"]:
        if ctx.path(directory + "/include/cuda.h").exists and ctx.path(directory + "/bin/nvcc").exists:
            found = directory
            break
    wanted = ctx.os.environ.get("DTRUN_CUDA", "auto")
    if wanted not in ["auto", "0", "1"]:
        fail("\n\nDTRUN_CUDA is '{}'; expected auto, 0 or 1\n".format(wanted))
    if wanted == "1" and not found:
        fail("\n\nDTRUN_CUDA=1, but no include/cuda.h with bin/nvcc was found in CUDA_HOME, CUDA_PATH or /usr/local/cuda\n")
    architectures = ctx.os.environ.get("DTRUN_CUDA_ARCHITECTURES", "80 90 100").split(" ")
    for architecture in architectures:
        if not architecture.rstrip("af").isdigit():
            fail("\n\nDTRUN_CUDA_ARCHITECTURES is '{}'; expected compute capabilities, such as '80 90 100'\n".format(" ".join(architectures)))
    if wanted == "0":
        found = ""
    if found:
        _take_cuda_headers(ctx, found + "/include")
    ctx.file("found.bzl", "CUDA_FOUND = {}\nCUDA_FOLDER = {}\nCUDA_ARCHITECTURES = {}\n".format(
        bool(found),
        repr(found),
        repr(architectures),
    ))

    # Headers only: libcuda and the other GPU libraries are loaded at run time, so that one binary runs everywhere.
    ctx.file("BUILD.bazel", _LIBRARY.format(
        name = "cuda",
        includes = repr(["include"]),
        defines = "[]",
        linkopts = "[]",
    ))

# `@cuda//:found.bzl` says whether the toolkit is there, where, and for which architectures kernels are compiled
# (DTRUN_CUDA_ARCHITECTURES); `@cuda` is its headers.
cuda = repository_rule(
    implementation = _cuda_impl,
    local = True,
    environ = ["CUDA_HOME", "CUDA_PATH", "DTRUN_CUDA", "DTRUN_CUDA_ARCHITECTURES"],
)

def _libtorch_impl(ctx):
    api = "torch/csrc/api/include"
    header = "include/" + api + "/torch/torch.h"
    wanted = ctx.os.environ.get("DTRUN_LIBTORCH", "auto")
    found = ""
    for directory in {"auto": ["/usr", "/usr/local"], "0": []}.get(wanted, [wanted]):
        if not found and ctx.path(directory + "/" + header).exists:
            found = directory
    if wanted not in ["auto", "0"] and not found:
        fail("\n\nDTRUN_LIBTORCH is '{}'; expected auto, 0 or a folder with {}\n".format(wanted, header))
    if found == "/usr":
        # The compiler looks for the rest in /usr/include by itself; declared, its 8,000 headers would be linked into
        # each sandbox.
        ctx.symlink("/usr/include/" + api, "include/" + api)
    elif found:
        for headers in ["torch", "ATen", "c10", "caffe2"]:
            if ctx.path(found + "/include/" + headers).exists:
                ctx.symlink(found + "/include/" + headers, "include/" + headers)
    lib = [] if found in ["", "/usr"] else ["-L" + found + "/lib", "-Wl,-rpath," + found + "/lib"]
    ctx.file("found.bzl", "LIBTORCH_FOUND = {}\n".format(bool(found)))
    ctx.file("BUILD.bazel", _LIBRARY.format(
        name = "libtorch",
        includes = repr(["include", "include/" + api]),
        defines = "[]",
        linkopts = repr(lib + ["-ltorch", "-ltorch_cpu", "-lc10"]),
    ))

# `@libtorch//:found.bzl` says whether LibTorch is there, in the folder DTRUN_LIBTORCH or where Debian puts it (0: it is to
# be done without); `@libtorch` is it.
libtorch = repository_rule(
    implementation = _libtorch_impl,
    local = True,
    environ = ["DTRUN_LIBTORCH"],
)

def _onednn_impl(ctx):
    wanted = ctx.os.environ.get("DTRUN_ONEDNN", "")
    folder = wanted or "/usr"
    if not ctx.path(folder + "/include/dnnl.hpp").exists:
        fail("\n\n" + ("DTRUN_ONEDNN is '{}'; expected a folder with include/dnnl.hpp\n".format(wanted) if wanted else "dnnl.hpp was not found in /usr/include. Install it with: apt-get install libdnnl-dev   (or run scripts/quickstart)\n"))
    headers = ["dnnl" + part for part in [".h", ".hpp", "_config.h", "_debug.h", "_types.h", "_version.h"]]
    for header in headers + ["oneapi/dnnl"]:
        ctx.symlink(folder + "/include/" + header, "include/" + header)

    # The version stands in one line of a header: #define DNNL_VERSION_MAJOR 2
    major = ""
    for line in ctx.read(folder + "/include/oneapi/dnnl/dnnl_version.h").splitlines():
        words = [word for word in line.split(" ") if word]
        if words[:2] == ["#define", "DNNL_VERSION_MAJOR"]:
            major = words[2]
    if major not in ["2", "3"]:
        fail("\n\n{}/include holds oneDNN {}; expected version 2 or 3\n".format(folder, major or "of unknown version"))
    ctx.file("version.bzl", "ONEDNN_MAJOR = {}\n".format(repr(major)))
    lib = ["-L" + folder + "/lib", "-Wl,-rpath," + folder + "/lib"] if wanted else []
    ctx.file("BUILD.bazel", _LIBRARY.format(
        name = "onednn",
        includes = repr(["include"]),
        defines = "[]",
        linkopts = repr(lib + ["-ldnnl"]),
    ))

# `@onednn` is the oneDNN in the folder DTRUN_ONEDNN, or else Debian's; `@onednn//:version.bzl` tells its major version.
onednn = repository_rule(
    implementation = _onednn_impl,
    local = True,
    environ = ["DTRUN_ONEDNN"],
)

def system_libraries():
    open_mpi(name = "open_mpi")
    cuda(name = "cuda")
    libtorch(name = "libtorch")
    onednn(name = "onednn")
    system_library(
        name = "cli11",
        headers = ["CLI"],
        package = "libcli11-dev",
    )
    system_library(
        name = "yaml_cpp",
        headers = ["yaml-cpp"],
        package = "libyaml-cpp-dev",
        linkopts = ["-l:libyaml-cpp.a"],  # dtrun starts faster, and runs where only Open MPI is installed
    )
    system_library(
        name = "catch2",
        headers = ["catch2"],
        package = "catch2",
    )
    system_library(
        name = "nlohmann_json",
        headers = ["nlohmann"],
        package = "nlohmann-json3-dev",
    )
    system_library(
        name = "hwloc",
        headers = ["hwloc.h", "hwloc"],
        package = "libhwloc-dev",
        linkopts = ["-lhwloc"],
    )
    system_library(
        name = "openssl",
        headers = ["openssl"],
        package = "libssl-dev",
        linkopts = ["-lcrypto"],
    )
    system_library(
        name = "ucx",
        headers = ["ucp", "uct", "ucs", "ucm"],
        package = "libucx-dev",
        linkopts = ["-lucp", "-lucs"],
    )
    system_library(
        name = "zlib",
        headers = ["zlib.h", "zconf.h"],
        directories = ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"],
        package = "zlib1g-dev",
        linkopts = ["-lz"],
    )
