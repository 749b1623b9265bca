"""Versions, their order, and ranges of them. Mistakes in reading text: input that is allowed, and that nobody tried."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def versions(random: Random) -> Draft:
    """Versions, their order, and ranges of them."""
    package, mark = package_name(random), random.choice(("rc", "beta"))
    text = code(
        '''
        """Versions such as 1.10.2 or 2.0-@mark@1."""


        def parse(text):
            """Return what a version is ordered by: its numbers, then whether it is final, then the number of the @mark@."""
            main, _, mark = text.strip().partition("-@mark@")
            numbers = [int(part) for part in main.split(".")]
            while len(numbers) > 1 and numbers[-1] == 0:
                numbers.pop()
            return (tuple(numbers), not mark, int(mark or 0))


        def newest(versions):
            """Return the newest of the versions as it is written."""
            return max(versions, key=parse)


        def matches(text, wanted):
            """Return whether a version fulfils all of the conditions, such as ``>=1.2, <2``."""
            version = parse(text)
            for condition in wanted.split(","):
                condition = condition.strip()
                for sign in (">=", "<=", "==", ">", "<"):
                    if condition.startswith(sign):
                        other = parse(condition.removeprefix(sign))
                        break
                else:
                    raise ValueError(f"{condition!r} is no condition")
                if not {
                    ">=": version >= other,
                    "<=": version <= other,
                    "==": version == other,
                    ">": version > other,
                    "<": version < other,
                }[sign]:
                    return False
            return True
        ''',
        mark=mark,
    )
    mistake = random.choice(
        (
            Mistake(
                'numbers = [int(part) for part in main.split(".")]',
                'numbers = [part if part != "0" else 0 for part in main.split(".")]',
                "1.9 is newer than 1.10 for `newest`, because the parts are compared as text.",
                ("test_numbers_are_numbers", "test_conditions"),
            ),
            Mistake(
                "return (tuple(numbers), not mark, int(mark or 0))",
                "return (tuple(numbers), bool(mark), int(mark or 0))",
                f"A version such as 2.0-{mark}1 counts as newer than 2.0 itself, so everybody gets the preview.",
                ("test_a_preview_is_older",),
            ),
            Mistake(
                'for sign in (">=", "<=", "==", ">", "<"):',
                'for sign in (">", "<", "==", ">=", "<="):',
                "Conditions with `>=` and `<=` raise ValueError.",
                ("test_conditions",),
            ),
            Mistake(
                "    while len(numbers) > 1 and numbers[-1] == 0:\n        numbers.pop()\n",
                "",
                '`matches("1.2", "==1.2.0")` is False, although both are the same version.',
                ("test_zeros_at_the_end",),
                held_out=True,
            ),
        )
    )
    hidden = """
        def test_numbers_are_numbers(self):
            self.assertEqual(newest(["1.9", "1.10", "1.2"]), "1.10")

        def test_a_preview_is_older(self):
            self.assertEqual(newest(["2.0-@mark@1", "2.0", "2.0-@mark@2", "1.9"]), "2.0")
            self.assertEqual(newest(["2.0-@mark@1", "2.0-@mark@2"]), "2.0-@mark@2")

        def test_conditions(self):
            self.assertTrue(matches("1.10", ">=1.2, <2"))
            self.assertTrue(matches("1.2", "<=1.2"))
            self.assertFalse(matches("2.0", ">=1.2, <2"))

        def test_zeros_at_the_end(self):
            self.assertTrue(matches("1.2", "==1.2.0"))

        def test_no_condition(self):
            with self.assertRaises(ValueError):
                matches("1.2", "about 1")
        """
    shown = """
        def test_the_newest(self):
            self.assertEqual(newest(["1.2", "1.3", "1.2.5"]), "1.3")
        """
    return Draft(
        "parsing",
        package,
        "versions.py",
        {"versions.py": text},
        cases(package, "versions", "newest", shown),
        cases(package, "versions", "matches, newest", hidden, plain=True, mark=mark),
        mistake,
    )
