"""``python3 -I runner.py``: runs unittest modules of a repository, and prints a line per test as unittest's own verbose runner does.

It reads ``{"modules": [...]}`` from stdin. Guarantees: what the tests and the package print never gets between the lines, and a
module of the repository never takes the place of one of the standard library. Only the standard library is imported, and Python 3.8 is enough.
"""

import importlib
import json
import os
import random
import sys
import traceback
import unittest


class Lines(unittest.TestResult):
    """Writes ``method (module.Class) ... ok`` and the like."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def line(self, test, word):
        kind = type(test)
        name = getattr(test, "_testMethodName", str(test))
        self.out.write(f"{name} ({kind.__module__}.{kind.__qualname__}) ... {word}\n")
        self.out.flush()

    def addSuccess(self, test):
        self.line(test, "ok")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(test, "FAIL")

    def addError(self, test, err):
        super().addError(test, err)
        self.line(test, "ERROR")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.line(test, "FAIL")

    def addSkip(self, test, reason):
        self.line(test, "skipped")

    def addExpectedFailure(self, test, err):
        self.line(test, "ok")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.line(test, "FAIL")


def main():
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    packages = (at for at, path in enumerate(sys.path) if "-packages" in path)
    sys.path.insert(next(packages, len(sys.path)), os.getcwd())  # behind the standard library
    tests, result = [], Lines(out)
    for name in asked["modules"]:
        try:
            tests += list(flat(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))))
        except BaseException:
            out.write(f"{name} ... ERROR\n{traceback.format_exc(limit=-3)}")
            result.errors.append((name, ""))
    random.SystemRandom().shuffle(tests)
    for kind in {type(test) for test in tests}:
        unittest.TestSuite(test for test in tests if type(test) is kind).run(result)
    out.flush()
    os._exit(0 if tests and result.wasSuccessful() else 1)


def flat(suite):
    """Yield the tests of a suite."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flat(item)
        else:
            yield item


if __name__ == "__main__":
    main()
