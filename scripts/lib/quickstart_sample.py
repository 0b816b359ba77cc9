"""Makes a folder with all training images of a data set and few of its test images, and prints how many there were of each.

Short measurements train on it: most of their time would go into the test at the end of each epoch otherwise.
"""

import gzip
import os
import struct
import sys

TEST_IMAGES = 200
TRAINING = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def find(folder, name):
    for path in (os.path.join(folder, name), os.path.join(folder, name + ".gz")):
        if os.path.exists(path):
            return path
    sys.exit(f"{folder}: {name} is missing (with or without .gz)")


def opened(path):
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")


def head(path, count=0):
    """The number of items of an IDX file, and such a file of its first `count` items."""
    with opened(path) as file:
        magic = file.read(4)
        sizes = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))
        item = 1
        for size in sizes[1:]:
            item *= size
        count = min(count, sizes[0])
        return sizes[0], magic + struct.pack(f">{len(sizes)}I", count, *sizes[1:]) + file.read(count * item)


def main():
    source, target = sys.argv[1:]
    os.makedirs(target, exist_ok=True)
    for path in os.listdir(target):
        os.remove(os.path.join(target, path))
    for name in TRAINING:
        path = find(source, name)
        os.symlink(path, os.path.join(target, os.path.basename(path)))
    for name in TEST:
        with open(os.path.join(target, name), "wb") as file:
            file.write(head(find(source, name), TEST_IMAGES)[1])
    print(head(find(source, TRAINING[0]))[0], head(find(source, TEST[0]))[0])


try:
    main()
except (OSError, EOFError, IndexError, struct.error) as error:
    sys.exit(f"{sys.argv[1]}: the data set cannot be read: {error}")
