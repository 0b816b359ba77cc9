# Not run: no test calls vcpkg. This port has the shape that vcpkg documents for overlay ports.
#
#   vcpkg install dtrun --overlay-ports=packaging/vcpkg
#
# It builds the clone that holds it, against the libraries of the system: Bazel finds those in /usr/include, and
# scripts/packages.txt names their packages. So dtrun depends on no port.

get_filename_component(CLONE "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)
set(STAGED "${CURRENT_BUILDTREES_DIR}/installed")

# Bazel writes below its user's home.
file(MAKE_DIRECTORY "${CURRENT_BUILDTREES_DIR}/home")
set(ENV{HOME} "${CURRENT_BUILDTREES_DIR}/home")
set(ENV{DTRUN_CUDA} 0)
set(ENV{DTRUN_LIBTORCH} 0)
vcpkg_execute_required_process(
  COMMAND "${CLONE}/scripts/install" --no-install "${STAGED}"
  WORKING_DIRECTORY "${CLONE}"
  LOGNAME install)

# The package has the libraries and the headers, with the file for CMake in the folder of the port; programs go to tools/.
file(INSTALL "${STAGED}/include" "${STAGED}/lib" DESTINATION "${CURRENT_PACKAGES_DIR}")
file(INSTALL "${STAGED}/bin" "${STAGED}/libexec" DESTINATION "${CURRENT_PACKAGES_DIR}/tools/dtrun" USE_SOURCE_PERMISSIONS)
file(INSTALL "${STAGED}/share/man" DESTINATION "${CURRENT_PACKAGES_DIR}/share/dtrun")
file(WRITE "${CURRENT_PACKAGES_DIR}/share/dtrun/copyright" "No licence has been chosen by the owner.\n")

# scripts/install builds one kind of library, optimised, and its file for CMake finds everything from where it lies.
set(VCPKG_POLICY_MISMATCHED_NUMBER_OF_BINARIES enabled)
set(VCPKG_POLICY_SKIP_LIB_CMAKE_MERGE_CHECK enabled)
set(VCPKG_POLICY_SKIP_MISPLACED_CMAKE_FILES_CHECK enabled)
