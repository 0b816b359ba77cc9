"""`cuda_kernels`: a .cu file as machine code in a C array, for the architectures of @cuda.

The image is data: nothing of CUDA's runtime is linked, and a program with it starts on a machine without a driver.
"""

load("@cuda//:found.bzl", "CUDA_ARCHITECTURES", "CUDA_FOLDER", "CUDA_FOUND")
load("@rules_cc//cc:defs.bzl", "cc_library")

# Targets that need CUDA are skipped where the toolkit is not found: `target_compatible_with = NEEDS_CUDA`.
NEEDS_CUDA = [] if CUDA_FOUND else ["//scripts/bazel:cuda_is_missing"]

def _codes():
    codes = ["-gencode=arch=compute_{0},code=sm_{0}".format(each) for each in CUDA_ARCHITECTURES]

    # A GPU that is newer than all of them has its driver compile this.
    return codes + ["-gencode=arch=compute_{0},code=compute_{0}".format(CUDA_ARCHITECTURES[-1])]

def _cuda_image_impl(ctx):
    image = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    array = ctx.actions.declare_file(ctx.label.name + ".c")
    ctx.actions.run_shell(
        outputs = [image],
        inputs = [ctx.file.src] + ctx.files.hdrs,
        # nvcc looks for its own programs and for the host's compiler in PATH.
        command = 'PATH="{folder}/bin:$PATH" nvcc -fatbin -std=c++20 -O3 -I. {codes} -Werror all-warnings {copts} -o {image} {src}'.format(
            folder = CUDA_FOLDER,
            codes = " ".join(_codes()),
            copts = " ".join(ctx.attr.copts),
            image = image.path,
            src = ctx.file.src.path,
        ),
        mnemonic = "Nvcc",
        progress_message = "Compiling kernels of " + ctx.file.src.short_path,
    )
    ctx.actions.run_shell(
        outputs = [array],
        inputs = [image],
        command = '"{folder}/bin/bin2c" --const --type longlong --name {name} {image} > {array}'.format(
            folder = CUDA_FOLDER,
            name = ctx.attr.array,
            image = image.path,
            array = array.path,
        ),
        mnemonic = "Bin2c",
    )
    return [DefaultInfo(files = depset([array]))]

_cuda_image = rule(
    implementation = _cuda_image_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = True),
        "array": attr.string(mandatory = True),
        "copts": attr.string_list(),
    },
)

def cuda_kernels(name, src, hdrs = [], copts = [], **kwargs):
    """The kernels of a .cu file, to be linked; nothing where there is no CUDA toolkit.

    They are in `extern "C" const unsigned long long dtrun_NAME[]`, which is what gpu::Kernels takes.

    Args:
      name: the target, and part of the array's name.
      src: the file.
      hdrs: what it includes besides gpu/kernel.h.
      copts: more of nvcc's options.
      **kwargs: as everywhere.
    """
    if not CUDA_FOUND:
        # Who depends on it is skipped.
        cc_library(name = name, target_compatible_with = NEEDS_CUDA, **kwargs)
        return
    _cuda_image(
        name = name + "_image",
        src = src,
        hdrs = hdrs + ["//gpu:kernel_headers"],
        array = "dtrun_" + name,
        copts = copts,
        visibility = ["//visibility:private"],
    )
    cc_library(
        name = name,
        srcs = [name + "_image"],
        **kwargs
    )
