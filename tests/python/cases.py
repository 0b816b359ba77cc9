"""Runs the cases of a program on this rank: its functions whose names begin with `test_`, in their order."""
import sys

import dtrun


def run(cases):
    """Runs them all and prints how many passed. A case that raises ends this rank, and with it the job."""
    chosen = [(name, case) for name, case in cases.items() if name.startswith("test_") and (len(sys.argv) < 2 or sys.argv[1] in name)]
    for name, case in chosen:
        try:
            case()
        except BaseException:
            print(f"rank {dtrun.rank()}: {name} failed", file=sys.stderr, flush=True)
            raise
    print(f"{len(chosen)} cases passed")


class raises:
    """A block that must raise `kind` with all `words` in its text."""

    def __init__(self, kind, *words):
        self.kind, self.words = kind, words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, f"nothing was raised; expected {self.kind.__name__}"
        if not issubclass(kind, self.kind):
            return False
        for word in self.words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return True
