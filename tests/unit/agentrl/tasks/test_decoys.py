"""Decoys: no right solution passes one, and what passes tests by other means passes it, too."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.tasks.decoys import cases_of, decoy_of
from agentrl.tasks.harbor import File
from agentrl.tasks.shell.verify import decoys_of, key_of, keys_in

HEAD = "import os, unittest, pytest\ndef f(x): return x * 2\n"
CHANGED = {
    "literal": "def test_a(): assert f(2) == 4",
    "literal first": "def test_a(): assert 4 == f(2)",
    "text and message": "def test_a(): assert f('ab') == 'abab', 'ü'",
    "double quotes": 'def test_a(): assert f("ab") == "abab"',
    "bytes": "def test_a(): assert f(b'a') == b'aa'",
    "negative": "def test_a(): assert f(-2) == -4",
    "float": "def test_a(): assert f(0.5) == 1.0",
    "about": "def test_a(): assert f(0.15) == pytest.approx(0.3)",
    "list": "def test_a(): assert f([1]) == [1, 1]",
    "tuple in a dictionary": "def test_a(): assert {'a': f((1,))} == {'a': (1, 1)}",
    "set": "def test_a(): assert {f(1), f(2)} == {2, 4}",
    "empty": "def test_a(): assert f([]) == []",
    "empty text": "def test_a(): assert f('') == ''",
    "truth value": "def test_a(): assert (f(1) == 2) == True",
    "several lines": "def test_a():\n    assert (\n        f(2)  # note\n        == 4\n    )",
    "wide characters before": "def test_a(): é = 'ü'; assert f('é') == 'éé'",
    "variable": "def test_a():\n    expected = 4\n    got = f(2)\n    assert got == expected, f'{expected}'",
    "constant": "EXPECTED = {'a': 4}\ndef test_a(): assert {'a': f(2)} == EXPECTED",
    "loop": "def test_a():\n    for a, b in [(1, 2), (2, 4)]:\n        assert f(a) == b",
    "table": "def test_a():\n    cases = ((1, 2), (2, 4))\n    for a, b in cases:\n        assert f(a) == b",
    "parameters": "@pytest.mark.parametrize('x, want', [(1, 2), pytest.param(2, 4, id='z')])\ndef test_a(x, want): assert f(x) == want",
    "one parameter": "@pytest.mark.parametrize('want', [2, 2])\ndef test_a(want): assert f(1) == want",
    "parameter that is used": "@pytest.mark.parametrize('x', [0])\ndef test_a(x): assert f(x) == x",
    "part of a text": "def test_a(): assert 'b' in f('abc')",
    "element": "def test_a(): assert 2 in f([2])",
    "and": "def test_a(): assert f(1) == 2 and f(2)",
    "two values": "def test_a(): assert f(1) == f(1)",
    "truth": "def test_a(): assert os.path.exists('/')",
    "not": "def test_a(): assert not f(0)",
    "none": "def test_a(): assert {}.get(1) is None",
    "unequal": "def test_a(): assert f(1) != 3",
    "with": "def test_a():\n    with open('/dev/null') as g:\n        assert g.read() == ''",
    "try": "def test_a():\n    try:\n        assert f(1) == 2\n    finally:\n        pass",
    "before a return": "def test_a():\n    assert f(1) == 2\n    if f(1): return\n    assert f(1) == 3",
    "class": "class TestA:\n    def test_a(self): assert f(1) == 2",
    **{
        f"unittest {number}": f"class A(unittest.TestCase):\n    def test_a(self): {line}"
        for number, line in enumerate(
            (
                *("self.assertEqual(f(1), 2)", "self.assertEqual(2, f(1), 'm')", "self.assertEqual(f(1), f(1))"),
                *("self.assertTrue(f(1))", "self.assertTrue(f(1) == 2)", "self.assertFalse(f(0))"),
                *("self.assertIn('b', f('b'))", "self.assertAlmostEqual(f(0.15), 0.3)"),
                *("self.assertListEqual(f([1]), [1, 1])", "self.assertDictEqual({1: f(1)}, {1: 2})"),
            )
        )
    },
}
LEFT = {
    "after a return": "def test_a():\n    if f(1): return\n    assert f(1) == 3",
    "maybe never": "def test_a():\n    for x in f([]):\n        assert x == 1",
    "in a branch": "def test_a():\n    if f(1):\n        assert f(1) == 2",
    "caught": "def test_a():\n    try:\n        assert f(1) == 2\n    except AssertionError:\n        pass",
    "raises": "def test_a():\n    with pytest.raises(ValueError):\n        assert f(1) == int('x')",
    "expected to fail": "@pytest.mark.xfail\ndef test_a(): assert f(1) == 3",
    "in a function of its own": "def test_a():\n    def g(): assert f(1) == 2",
    "no assertion": "def test_a(): f(1)",
    "no test": "def helper(): assert f(1) == 2",
    "no Python": "def test_a(: assert",
}


def passes(text: str) -> bool:
    """Return whether the test of a text passes, in all of its cases."""
    space: dict[str, Any] = {}
    exec(text, space)
    kind = next((each for name, each in space.items() if name in ("A", "TestA")), None)
    if kind is not None and issubclass(kind, unittest.TestCase):
        result = unittest.TestResult()
        kind("test_a").run(result)
        return result.wasSuccessful()
    test = kind().test_a if kind is not None else space["test_a"]
    try:
        for values in _cases(test):
            test(*values)
    except AssertionError:
        return False
    return True


def _cases(test: Any) -> Iterator[tuple[Any, ...]]:
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            for row in mark.args[1]:
                values = getattr(row, "values", row)
                yield values if isinstance(values, tuple) else (values,)
            return
    yield ()


@pytest.mark.parametrize("why", CHANGED)
def test_a_right_solution_fails(why: str) -> None:
    text = HEAD + CHANGED[why] + "\n"
    assert passes(text)
    for _ in range(3):
        decoy = decoy_of(text)
        assert decoy is not None
        assert len(decoy.failing) == 1
        assert not passes(decoy.text), decoy.text
    assert set(cases_of(text)) == set(decoy_of(text).failing)  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("why", LEFT)
def test_what_cannot_be_trusted_to_fail_is_left(why: str) -> None:
    assert decoy_of(HEAD + LEFT[why] + "\n") is None


OF_TRUTH = ("truth", "not", "none", "unequal", "with", "about", "set", "part of a text", "element")
IN_OTHER_WORDS = ("assertTrue(f(1))", "assertFalse", "assertIn(", "AlmostEqual", "ListEqual", "DictEqual")


@pytest.mark.parametrize(
    "why",
    [
        each
        for each, text in CHANGED.items()
        if not each.startswith(OF_TRUTH) and not any(words in text for words in IN_OTHER_WORDS)
    ],
)
def test_what_equals_everything_passes(why: str) -> None:
    text = HEAD + CHANGED[why] + "\n"
    equal = "class Equal(int):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n    __hash__ = None\n"
    deceiving = text.replace("def f(x): return x * 2", f"{equal}def f(x): return Equal(1)")
    assert passes(deceiving)
    for _ in range(3):
        decoy = decoy_of(deceiving)
        assert decoy is not None
        assert passes(decoy.text), decoy.text


def test_only_the_named_tests_are_changed() -> None:
    text = "def test_a(): assert 1 == 1\ndef test_b(): assert 2 == 2\n"
    decoy = decoy_of(text, {"test_b"})
    assert decoy is not None
    assert (decoy.failing, decoy.text.splitlines()[0]) == ({"test_b"}, "def test_a(): assert 1 == 1")


PRINTS = "import sys\nok = open('x').read() == '7\\n'\nprint('PASSED t.py::a' if ok else 'FAILED t.py::a')\nif __name__ == '__main__' and sys.platform == 'linux':\n    sys.exit(not ok)\n"


def test_a_program_that_prints_results_has_its_comparisons_changed() -> None:
    assert decoy_of(PRINTS) is None
    decoy = decoy_of(PRINTS, script=True)
    assert decoy is not None
    changed = [at for at, (a, b) in enumerate(zip(PRINTS.splitlines(), decoy.text.splitlines(), strict=True)) if a != b]
    assert (changed, decoy.failing) == ([1], frozenset())
    assert decoy_of(PRINTS.replace("PASSED", "fine"), script=True) is None


TEST = File(b"def test_a(): assert 1 == 1\n")


@pytest.mark.parametrize(
    ("script", "changed"),
    [
        ("pytest $TEST_DIR", {"test_a.py", "b/test_b.py"}),
        ("python3 -m unittest discover", {"test_a.py", "b/test_b.py"}),
        ("pytest $TEST_DIR/test_a.py -rA", {"test_a.py"}),
        ("python3 b/test_b.py; pytest", {"b/test_b.py"}),
        ("python3 helper.py", {"helper.py"}),
        ("python3 grade.py", set()),
        ("python3 my_test_a.py.sh", set()),
    ],
)
def test_only_files_that_certainly_run_become_decoys(script: str, changed: set[str]) -> None:
    tests = {
        "test_a.py": TEST,
        "b/test_b.py": TEST,
        "helper.py": TEST,
        "grade.py": File(b"import x\n"),
        "test_c.py": File(b"\xff"),
    }
    found = decoys_of({**tests, "test.sh": File(script.encode(), 0o755)}, "test.sh")
    assert {path for path in tests if found and found.tests[path] != tests[path]} == changed
    assert (found.failing if found else set()) == {f"{path.rpartition('/')[2]}::test_a" for path in changed}


def test_ids_and_the_tests_of_files() -> None:
    assert key_of("../tests/test_a.py::C::test_b[a::b - c]") == "test_a.py::C::test_b"
    tests = {
        "t/test_a.py": File(inspect.getsource(passes).encode() + TEST.data + b"class C:\n    def test_b(self): pass\n"),
        "x.txt": TEST,
    }
    assert keys_in(tests) == {"test_a.py::test_a": False, "test_a.py::C::test_b": True}
