"""Several programs as one executable, which finds in argv[0] by which name it was called.

Their headers are compiled once, which is most of the time of a small program's compilation.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary")

def _executable_name_impl(ctx):
    name = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = name, target_file = ctx.executable.executable, is_executable = True)
    return DefaultInfo(
        executable = name,
        files = depset([name]),
        runfiles = ctx.attr.executable[DefaultInfo].default_runfiles,
    )

# A further name of an executable.
executable_name = rule(
    implementation = _executable_name_impl,
    attrs = {"executable": attr.label(executable = True, cfg = "target", mandatory = True)},
    executable = True,
)

_DECLARATION = "namespace programs::{0} {{ int Main(int argc, char** argv); }}\n"
_CALL = "  if (std::strcmp(called, \"{0}\") == 0) return programs::{0}::Main(argc, argv);\n"
_MAIN = """#include <cstdio>
#include <cstring>

{declarations}
int main(int argc, char** argv) {{
  const char* slash = std::strrchr(argv[0], '/');
  const char* called = slash == nullptr ? argv[0] : slash + 1;
{calls}  std::fprintf(stderr, "%s: no program of this name\\n", called);
  return 2;
}}
"""

def _main_source_impl(ctx):
    source = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(source, _MAIN.format(
        calls = "".join([_CALL.format(name) for name in ctx.attr.programs]),
        declarations = "".join([_DECLARATION.format(name) for name in ctx.attr.programs]),
    ))
    return DefaultInfo(files = depset([source]))

_main_source = rule(
    implementation = _main_source_impl,
    attrs = {"programs": attr.string_list()},
)

def cc_programs(name, programs, testonly = None, **kwargs):
    """An executable, and a target for each of its names.

    Args:
      name: the executable.
      programs: its names. NAME.cc defines `int Main(int argc, char** argv)` in the namespace programs::NAME.
      testonly: as everywhere.
      **kwargs: those of cc_binary.
    """
    if testonly == None:
        testonly = native.package_name().startswith("tests/")
    main = name + ".main.cc"
    _main_source(
        name = main,
        programs = programs,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    cc_binary(
        name = name,
        srcs = [program + ".cc" for program in programs] + [":" + main],
        testonly = testonly,
        **kwargs
    )
    for program in programs:
        executable_name(
            name = program,
            executable = ":" + name,
            testonly = testonly,
        )
