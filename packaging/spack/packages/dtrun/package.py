# Not run: no test calls Spack. This recipe has the shape that Spack 0.23 documents.
#
#   spack repo add packaging/spack
#   spack install dtrun
#
# It builds the clone that holds it, against the libraries of the system: Bazel finds those in /usr/include, and scripts/packages.txt
# names their packages. So dtrun depends on no package of Spack.

import os

from spack.package import *


class Dtrun(Package):
    """Data-parallel runtime and launcher for C++ trainers."""

    # The owner of dtrun has not chosen a licence, and the source has no public address: no license, url or checksum.
    has_code = False
    version("0.1.0")

    variant("core", default=False, description="Only dtrun, its library with the headers, and cnn_fmnist")

    conflicts("platform=darwin", msg="dtrun builds for Linux only")
    conflicts("target=aarch64:", msg="dtrun builds for x86-64 only")

    def setup_build_environment(self, env):
        env.set("DTRUN_CUDA", "0")
        env.set("DTRUN_LIBTORCH", "0")
        env.set("HOME", self.stage.path)  # Bazel writes below its user's home

    def install(self, spec, prefix):
        clone = os.path.join(self.package_dir, *[os.pardir] * 4)
        words = ["--no-install"] + (["--core"] if spec.satisfies("+core") else []) + [prefix]
        with working_dir(clone):
            Executable("scripts/install")(*words)
