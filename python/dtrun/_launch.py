"""The command `dtrun` of the wheel: becomes the dtrun that the package brings."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prefix", "bin", "dtrun")
    try:
        os.execv(program, ["dtrun", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"dtrun: {program}: {error.strerror}; install the wheel again")
