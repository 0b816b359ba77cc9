"""The parts of models/ as one library that others link, and its headers as others include them."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _is_ours(label):
    return label.package == "models" or label.package.startswith("models/")

def _whole(ctx, features, toolchain, library):
    return cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        static_library = library.static_library,
        pic_static_library = library.pic_static_library,
        alwayslink = True,
    )

def _whole_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    all_deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    inputs = []
    for given in all_deps.linking_context.linker_inputs.to_list():
        if _is_ours(given.owner) or given.owner.package == "gpu":  # libdtrun hides its copy of gpu/
            libraries = [_whole(ctx, features, toolchain, library) for library in given.libraries]
            given = cc_common.create_linker_input(
                owner = given.owner,
                libraries = depset(libraries),
                user_link_flags = depset(given.user_link_flags),
            )
        inputs.append(given)
    return CcInfo(
        compilation_context = all_deps.compilation_context,
        linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs)),
    )

# Libraries and what they depend on; of those in models/ and gpu/, every object is linked, called or not.
whole_library = rule(
    implementation = _whole_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _installed_headers_impl(ctx):
    public, inputs = [], []
    for dep in ctx.attr.deps:
        context = dep[CcInfo].compilation_context
        public += context.direct_public_headers
        inputs.append(context.headers)
    folder = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add(folder.path)
    arguments.add_all(["%s=%s" % moved for moved in ctx.attr.moved.items()])
    arguments.add("--")
    arguments.add_all(public)
    ctx.actions.run_shell(
        outputs = [folder],
        inputs = depset(transitive = inputs),
        arguments = [arguments],
        command = """
set -euo pipefail
folder=$1
shift
while [[ $1 != -- ]]; do
  mkdir -p "$folder/${1%/*}"
  printf '// The header has moved.\\n#include <dtrun/models/%s>\\n' "${1#*=}" >"$folder/${1%%=*}"
  shift
done
shift
headers=("$@")
for ((i = 0; i < ${#headers[@]}; i++)); do
  header=${headers[i]}
  file=$folder/${header#models/}
  if [[ -e $file ]]; then continue; fi
  mkdir -p "$(dirname "$file")"
  sed -E 's,#include "models/([^"]+)",#include <dtrun/models/\\1>,' "$header" >"$file"
  mapfile -t included < <(sed -nE 's,^#include "(models/[^"]+)".*,\\1,p' "$header")
  headers+=("${included[@]}")
done
""",
    )
    return DefaultInfo(files = depset([folder]), runfiles = ctx.runfiles([folder]))

# A folder with the public headers of libraries in models/ (their `hdrs`) and with what these include, at the places that
# they have there. They include each other as <dtrun/models/...>. `moved`: paths that headers had once, and where what they
# declared is now; each old path stays valid.
installed_headers = rule(
    implementation = _installed_headers_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "moved": attr.string_dict(),
    },
)
