"""``python3 -I runner.py``: runs unittest modules of a repository, and prints a line per test as unittest's own verbose runner does.

It reads ``{"modules": [...], "traps": {METHOD: CLASS}}`` from stdin. Guarantees: what the tests and the package print never gets between the lines, and a
module of the repository never takes the place of one of the standard library. Traps are tests that fail in different ways; their names are
random, so a package that makes tests pass, or that prints what it likes and ends the process, cannot have the right lines for them. Only
the standard library is imported, and Python 3.8 is enough.
"""

import importlib
import json
import os
import random
import sys
import traceback
import unittest


def fail_by_equal(self):
    self.assertEqual(1, 2)


def fail_by_true(self):
    self.assertTrue(False)


def fail_by_raises(self):
    with self.assertRaises(KeyError):
        pass


def fail_by_error(self):
    raise ValueError


def fail_by_assert(self):
    raise AssertionError


def fail_by_plain_list(self):
    self.assertEqual([1], [1, 2])


WAYS = (fail_by_equal, fail_by_true, fail_by_raises, fail_by_error, fail_by_assert, fail_by_plain_list)


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


def traps(names):
    """Return the tests that fail; each class stands in a module of its own name."""
    for number, (method, place) in enumerate(names.items()):
        module, _, name = place.rpartition(".")
        kind = type(name, (unittest.TestCase,), {method: WAYS[number % len(WAYS)], "__module__": module})
        yield kind(method)


def main():
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    packages = (at for at, path in enumerate(sys.path) if "-packages" in path)
    sys.path.insert(next(packages, len(sys.path)), os.getcwd())  # behind the standard library
    tests = list(traps(asked["traps"]))
    result = Lines(out)
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
    os._exit(int(len(result.errors) + len(result.failures) > len(asked["traps"]) or not result.testsRun))


def flat(suite):
    """Yield the tests of a suite."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from flat(each)
        else:
            yield each


if __name__ == "__main__":
    main()
