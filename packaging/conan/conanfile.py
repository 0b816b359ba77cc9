"""dtrun as a package of Conan 2, built by scripts/install with Bazel from this clone and the libraries of the system.

    conan create packaging/conan --build=missing
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import build_jobs, check_min_cppstd
from conan.tools.files import copy, load, save
from conan.tools.system.package_manager import Apt

EXCLUDED = (".git", ".git/*", "build/*", "dist/*", "bazel-*", "*/__pycache__/*", "compile_commands.json")


class Dtrun(ConanFile):
    name = "dtrun"
    description = "Data-parallel runtime and launcher for C++ trainers"
    # The owner of dtrun has not chosen a licence: the attribute `license` is left out.
    topics = ("machine-learning", "distributed-training", "mpi")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "core": [True, False],  # only dtrun, its library with the headers, and cnn_fmnist: half of the build
        "cuda": [True, False],  # kernels for GPUs, with the CUDA toolkit of the system
    }
    default_options = {"core": False, "cuda": False}

    @property
    def _source(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        text = load(self, os.path.join(self._source, "base", "version.h"))
        self.version = re.search(r'kVersion\[\] = "([0-9.]+)"', text)[1]

    def export(self):
        copy(self, "packages.txt", src=os.path.join(self._source, "scripts"), dst=self.export_folder)

    def export_sources(self):
        copy(self, "*", src=self._source, dst=self.export_sources_folder, excludes=EXCLUDED)

    def validate(self):
        if str(self.settings.os) != "Linux" or str(self.settings.arch) != "x86_64":
            raise ConanInvalidConfiguration("dtrun builds for Linux on x86-64 only")
        if self.settings.build_type != "Release":
            raise ConanInvalidConfiguration("dtrun is always built optimised; expected build_type=Release")
        if self.settings.get_safe("compiler.cppstd"):
            check_min_cppstd(self, 17)  # of the headers; the build itself uses C++20

    # scripts/packages.txt names the packages of Debian and Ubuntu: package, group, probe, use.
    def system_requirements(self):
        beside = os.path.join(self.recipe_folder, "packages.txt")
        file = beside if os.path.exists(beside) else os.path.join(self._source, "scripts", "packages.txt")
        rows = re.findall(r"^(\S+) +(build|run) ", load(self, file), re.M)
        Apt(self).install([package for package, _ in rows], check=True)

    # Bazel keeps its files in the home of its user and reads .bazelrc there: this build has a home of its own.
    def _run_install(self, words):
        home = os.path.join(self.build_folder, "home")
        save(self, os.path.join(home, ".bazelrc"), f"build --jobs={build_jobs(self)}\n")
        core = "--core" if self.options.core else ""
        cuda = "auto" if self.options.cuda else "0"
        in_home = f"env -u TEST_TMPDIR HOME='{home}' DTRUN_CUDA={cuda} DTRUN_LIBTORCH=0"
        try:
            self.run(f"{in_home} scripts/install --no-install {core} {words}", cwd=self.source_folder)
        finally:
            self.run(f"{in_home} bazel shutdown", cwd=self.source_folder)

    def build(self):
        self._run_install("--build-only")

    def package(self):
        self._run_install(f"'{self.package_folder}'")

    # The package has files for CMake and pkg-config, which name dtrun::dtrun and dtrun::models.
    def package_info(self):
        runtime = self.cpp_info.components["runtime"]
        runtime.libs = ["dtrun"]
        runtime.builddirs = [os.path.join("lib", "cmake", "dtrun")]
        if not self.options.core:
            self.cpp_info.components["models"].libs = ["dtrun_models"]
            self.cpp_info.components["models"].requires = ["runtime"]
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.runenv_info.prepend_path("PATH", os.path.join(self.package_folder, "bin"))
        self.buildenv_info.prepend_path("PKG_CONFIG_PATH", os.path.join(self.package_folder, "lib", "pkgconfig"))
