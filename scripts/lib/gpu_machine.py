"""What scripts/gpu_check has to know of a machine: its GPUs, where libraries of others are, and a data set."""

import ctypes
import glob
import gzip
import json
import os
import random
import shutil
import subprocess
import sys

# --- the machine ----------------------------------------------------------------------------------


def gpu_obstacle():
    """Why no row of a GPU can run, in the driver's words; None where there is a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    text = ctypes.c_char_p()

    def reason(code):
        driver.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"").decode() or f"error {code}"

    code = driver.cuInit(0)
    if code:
        return f"cuInit: {reason(code)}"
    count = ctypes.c_int(0)
    code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return f"cuDeviceGetCount: {reason(code)}"
    return None if count.value else "the driver lists no GPU"


def described_gpus():
    fields = "name,memory.total,driver_version,power.limit,clocks.max.sm"
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()] if found.returncode == 0 else []


def described_cpu():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{os.cpu_count()} CPUs, {names[0] if names else 'of an unknown kind'}"


# --- libraries of others --------------------------------------------------------------------------

# What programs load when they use a GPU: any of the names.
NVIDIA_LIBRARIES = [["libcudnn.so.9"], ["libnccl.so.2"], ["libcublasLt.so.13", "libcublasLt.so.12"]]


def loads(names, environment):
    """The first of the names that the loader finds in this environment; else None."""
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    for name in names:
        if subprocess.run([sys.executable, "-c", load, name], env=environment, capture_output=True).returncode == 0:
            return name
    return None


def python_folders(python):
    """nvidia/*/lib of the site-packages of a Python."""
    search = "import json, site, sys; print(json.dumps(sys.path + site.getsitepackages() + [site.getusersitepackages()]))"
    try:
        found = subprocess.run([python, "-c", search], capture_output=True, text=True, timeout=30)
        paths = json.loads(found.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    folders = [folder for path in paths if path for folder in sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))]
    return list(dict.fromkeys(folders))


def with_folders(environment, folders):
    known = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return dict(environment, LD_LIBRARY_PATH=":".join(dict.fromkeys(known + folders)))


def settle_libraries(root, python):
    """The environment of rows, and for each of NVIDIA's libraries who has it. `root`: of the archive."""
    environment = dict(os.environ)
    own_mpi = os.path.join(root, "lib", "dtrun", "open-mpi")
    if os.path.isdir(own_mpi) and not loads(["libmpi.so.40"], environment):
        environment = with_folders(environment, [own_mpi])
    folders = python_folders(python)
    libraries = {}
    for names in NVIDIA_LIBRARIES:
        if loads(names, environment):
            libraries[names[0]] = "the loader finds it"
            continue
        holding = [folder for folder in folders if any(os.path.exists(os.path.join(folder, name)) for name in names)]
        libraries[names[0]] = holding[0] if holding else "not found"
        if holding:
            environment = with_folders(environment, folders)
    return environment, libraries


def tool_path(name):
    usual = [os.path.dirname(path) for path in sorted(glob.glob("/usr/local/cuda*/bin/" + name), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=":".join(usual + ["/opt/nvidia/compute-sanitizer"]))


# --- a data set -----------------------------------------------------------------------------------


def write_made_up_data(folder, images=60000, test_images=10000):
    """As large as Fashion-MNIST, in its format: ten patterns under noise. Good for speed, not for accuracies."""
    noise = random.Random(1)
    patterns = [noise.getrandbits(784 * 8) & int("c0" * 784, 16) for _ in range(10)]
    low_bits = int("3f" * 784, 16)
    for name, count in (("train", images), ("t10k", test_images)):
        labels = bytes(noise.randrange(10) for _ in range(count))
        pixels = b"".join((patterns[c] | noise.getrandbits(784 * 8) & low_bits).to_bytes(784, "big") for c in labels)
        sizes = b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        for kind, content in (
            ("images-idx3", b"\0\0\x08\x03" + sizes + pixels),
            ("labels-idx1", b"\0\0\x08\x01" + sizes[:4] + labels),
        ):
            with gzip.open(os.path.join(folder, f"{name}-{kind}-ubyte.gz"), "wb", compresslevel=1) as file:
                file.write(content)
