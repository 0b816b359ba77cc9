"""The C++ rules under the names that rules_cc gives them, handed on to the ones built into Bazel.

With --//scripts/bazel:unity, which is the default, the sources of a target are compiled in groups: one file includes up to
32 of them, so that headers and templates are compiled once per group. A cold build takes half the time. So no two
sources of a target may define the same name, not even in unnamed namespaces. --config=separate compiles each file by itself,
and so do libraries with `unity = False`.

Targets below tests/ are `testonly`.
"""

_LARGEST_GROUP = 32

def _unity_source_impl(ctx):
    source = ctx.actions.declare_file(ctx.label.name)
    lines = ['#include "%s"\n' % file.short_path for file in ctx.files.srcs]
    ctx.actions.write(source, "".join(lines))
    return DefaultInfo(files = depset([source]))

_unity_source = rule(
    implementation = _unity_source_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

# Of targets of this repository; others are compiled as they are.
def _sources(srcs):
    if native.repository_name() != "@" or type(srcs) != type([]):
        return []
    return [src for src in srcs if src.endswith(".cc")]

def _is_for_tests(testonly):
    return native.package_name().startswith("tests/") if testonly == None else testonly

# Targets that include the sources, in groups of nearly the same size.
def _groups(name, sources, testonly):
    count = (len(sources) + _LARGEST_GROUP - 1) // _LARGEST_GROUP
    groups = []
    for i in range(count):
        groups.append("%s.unity_%d.cc" % (name, i))
        _unity_source(
            name = groups[i],
            srcs = sources[len(sources) * i // count:len(sources) * (i + 1) // count],
            tags = ["manual"],
            testonly = testonly,
            visibility = ["//visibility:private"],
        )
    return groups

def _if_unity(yes, no):
    return select({
        "//scripts/bazel:compiles_in_groups": yes,
        "//conditions:default": no,
    })

def _grouped_srcs(name, srcs, sources, testonly):
    others = [src for src in srcs if src not in sources]
    return _if_unity(others + [":" + group for group in _groups(name, sources, testonly)], srcs)

def cc_library(name, srcs = [], textual_hdrs = [], testonly = None, unity = True, **kwargs):
    testonly = _is_for_tests(testonly)
    sources = _sources(srcs) if unity else []
    if len(sources) > 1:
        srcs = _grouped_srcs(name, srcs, sources, testonly)
        textual_hdrs = textual_hdrs + _if_unity(sources, [])
    native.cc_library(name = name, srcs = srcs, textual_hdrs = textual_hdrs, testonly = testonly, **kwargs)

# The rules for programs take no files that are only included: a library hands them on.
def _program(rule, name, srcs, deps, testonly, kwargs):
    testonly = _is_for_tests(testonly)
    sources = _sources(srcs)
    if len(sources) > 1:
        native.cc_library(
            name = name + ".sources",
            textual_hdrs = sources,
            tags = ["manual"],
            testonly = testonly,
            visibility = ["//visibility:private"],
        )
        srcs = _grouped_srcs(name, srcs, sources, testonly)
        deps = deps + _if_unity([":" + name + ".sources"], [])
    rule(name = name, srcs = srcs, deps = deps, testonly = testonly, **kwargs)

def cc_binary(name, srcs = [], deps = [], testonly = None, **kwargs):
    _program(native.cc_binary, name, srcs, deps, testonly, kwargs)

def weighed(tags):
    """The tags of a test with its share of the CPUs, which scripts/test counts in halves. "waits": for processes, most of the time."""
    has_weight = [tag for tag in tags if tag == "waits" or tag.startswith("cpu:")]
    return tags + ([] if has_weight else ["cpu:2"])

def cc_test(name, srcs = [], deps = [], testonly = True, tags = [], **kwargs):
    _program(native.cc_test, name, srcs, deps, testonly, dict(kwargs, tags = weighed(tags)))

cc_import = native.cc_import
cc_proto_library = native.cc_proto_library
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_import = native.objc_import
objc_library = native.objc_library
