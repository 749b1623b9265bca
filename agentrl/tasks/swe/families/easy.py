"""Mistakes of one line that the issue quotes with the right code, so that one command mends them: a model of a million parameters can copy it.

Names are single words, and numbers have two digits; see `lab/tiny_learning/vocabulary.py`.
"""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import FIRST, SECOND, Draft, Kind, Mistake, cases, code

NOUNS = ("apples", "boxes", "coins", "doors", "eggs", "forks", "hats", "keys", "lamps", "maps", "pens", "seats")
WORDS = ("cheap", "early", "free", "full", "heavy", "large", "late", "rare", "short", "slow")
OPTIONS = ("count", "depth", "height", "length", "size", "width")
SIDES = {">=": (">", True), ">": (">=", False), "<=": ("<", True), "<": ("<=", False)}
"""For each comparison the one that stands in its place, and whether it holds at the limit."""
LEAST, MOST = 11, 98
"""Numbers in code."""
VALUES = [4, 9, 2]
CALLS = {"lowest": "min", "highest": "max", "total": "sum", "number": "len"}


def limits(random: Random) -> Draft:
    """A count is compared with a limit, and the comparison is wrong at the limit itself."""
    noun, word, limit = random.choice(NOUNS), random.choice(WORDS), random.randint(LEAST, MOST)
    right = random.choice([*SIDES])
    wrong, holds = SIDES[right]
    text = code(
        '''
        """The limit of @noun@."""


        def is_@word@(@noun@):
            """Return whether the number is @word@."""
            return @noun@ @right@ @limit@
        ''',
        **{"noun": noun, "word": word, "right": right, "limit": limit},
    )
    hidden = """
        def test_at_the_limit(self):
            self.assertEqual(is_@word@(@limit@), @holds@)

        def test_above_the_limit(self):
            self.assertEqual([is_@word@(@limit@ + more) for more in (1, 2, 50)], [@above@] * 3)

        def test_below_the_limit(self):
            self.assertEqual([is_@word@(@limit@ - less) for less in (1, 2, 10)], [not @above@] * 3)
        """
    shown = """
        def test_far_from_the_limit(self):
            self.assertEqual(is_@word@(1000), @above@)
        """
    values = {"word": word, "limit": limit, "holds": holds, "above": right.startswith(">")}
    return _draft(
        random,
        "off_by_one",
        "limits",
        text,
        f"is_{word}({limit}) is {not holds}, and should be {holds}",
        Mistake(f"{noun} {right} {limit}", f"{noun} {wrong} {limit}", "", ("test_at_the_limit",)),
        (f"is_{word}", code(shown, **values), code(hidden, **values)),
    )


def defaults(random: Random) -> Draft:
    """An argument has a wrong default."""
    noun, option = random.choice(NOUNS), random.choice(OPTIONS)
    right, wrong = random.sample(range(LEAST, MOST + 1), 2)
    text = code(
        '''
        """A list of @noun@."""


        def first(@noun@, @option@=@right@):
            """Return the first @noun@."""
            return list(@noun@)[:@option@]
        ''',
        **{"noun": noun, "option": option, "right": right},
    )
    hidden = """
        def test_the_default(self):
            self.assertEqual(len(first(range(200))), @right@)

        def test_another_value(self):
            self.assertEqual([first(range(200), n) for n in (0, 1, 3)], [[], [0], [0, 1, 2]])

        def test_by_its_name(self):
            self.assertEqual(first(range(200), @option@=2), [0, 1])
        """
    shown = """
        def test_a_short_list_is_whole(self):
            self.assertEqual(first([1, 2]), [1, 2])
        """
    values = {"option": option, "right": right}
    return _draft(
        random,
        "constant",
        "defaults",
        text,
        f"Without {option}, first returns {wrong} {noun}, and should return {right}",
        Mistake(f"{option}={right}", f"{option}={wrong}", "", ("test_the_default",)),
        ("first", code(shown, **values), code(hidden, **values)),
    )


def calls(random: Random) -> Draft:
    """A function of the language is called in place of another one."""
    noun, most = random.choice(NOUNS), random.randint(LEAST, MOST)
    name, other = random.sample([*CALLS], 2)
    right, wrong = CALLS[name], CALLS[other]
    found = {"min": min(VALUES), "max": max(VALUES), "sum": sum(VALUES), "len": len(VALUES)}
    text = code(
        '''
        """Numbers of @noun@."""

        MOST = @most@


        def @name@(@noun@):
            """Return the @name@ of a list."""
            return @right@(@noun@)


        def allowed(number):
            """Return whether there may be so many."""
            return 0 <= number <= MOST
        ''',
        **{"noun": noun, "most": most, "name": name, "right": right},
    )
    hidden = """
        def test_the_value(self):
            self.assertEqual(@name@(@values@), @found@)

        def test_other_values(self):
            self.assertEqual(@name@([70, 80, 60, 90]), @right@([70, 80, 60, 90]))

        def test_what_is_allowed(self):
            self.assertEqual([allowed(n) for n in (-1, 0, @most@, @most@ + 1)], [False, True, True, False])
        """
    shown = """
        def test_a_few_are_allowed(self):
            self.assertTrue(allowed(1))
        """
    values = {"name": name, "right": right, "most": most, "values": VALUES, "found": found[right]}
    return _draft(
        random,
        "api_misuse",
        "calls",
        text,
        f"{name}({VALUES}) is {found[wrong]}, and should be {found[right]}",
        Mistake(f"{right}({noun})", f"{wrong}({noun})", "", ("test_the_value", "test_other_values")),
        (f"{name}, allowed", code(shown, **values), code(hidden, **values)),
    )


def _draft(
    random: Random, kind: Kind, module: str, text: str, symptom: str, mistake: Mistake, tests: tuple[str, str, str]
) -> Draft:
    """Return the draft of a package with one module; the issue has the symptom, and quotes both codes.

    Args:
        random: the package's name.
        kind: of the mistake.
        module: without its ending.
        text: of the working module.
        symptom: what a user sees, a sentence without its full stop.
        mistake: without its issue.
        tests: names to import, and methods of shown and hidden tests.
    """
    package = random.choice([*FIRST, *SECOND])
    imported, shown, hidden = tests
    issue = f"{symptom}.\n\nIn {package}/{module}.py, {mistake.wrong} should be {mistake.right}"
    return Draft(
        kind,
        package,
        f"{module}.py",
        {f"{module}.py": text},
        cases(package, module, imported.split(", ")[-1], shown),
        cases(package, module, imported, hidden, plain=True),
        Mistake(mistake.right, mistake.wrong, issue, mistake.breaks),
    )
