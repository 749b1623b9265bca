"""The suite ``coding``: generated functions with hidden tests, run in the sandbox of `evaluation.code_box`.

Problems are about numbers, lists and text; each function draws one at a level from 1 to 3, see `problem`.

Guarantees: the expected results come from the solution itself. At least `MIN_RESULTS` of the hidden ones differ, so that no
constant passes, and no hidden input is an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from evaluation.case import Case, Family, Grade, draw_cases
from evaluation.code_box import CodeBox, same
from evaluation.talk import Talk

EXAMPLES = 2
HIDDEN = 10
MIN_RESULTS = 3
MAX_DRAWS = 200
Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        name: of the function.
        signature: the function with its parameters, as the model reads it.
        wish: what it returns.
        solution: Python source that defines it.
        examples: arguments and result that the model reads.
        hidden: arguments and result that grade it.
    """

    name: str
    signature: str
    wish: str
    solution: str
    examples: Sequence[tuple[Arguments, Any]]
    hidden: Sequence[tuple[Arguments, Any]]

    @property
    def text(self) -> str:
        """What the model is asked."""
        shown = "\n".join(
            f"{self.name}({', '.join(map(repr, arguments))}) == {result!r}" for arguments, result in self.examples
        )
        return (
            f"Write a Python function `{self.signature}` that {self.wish}.\n\nExamples:\n{shown}\n\n"
            "Answer with one code block that defines the function, and nothing else."
        )


def problem(rng: Random, signature: str, wish: str, body: str, draw: Callable[[Random], Arguments]) -> Problem:
    """Return a problem with drawn inputs.

    Args:
        rng: decides the inputs.
        signature: such as ``total(numbers)``.
        wish: what the function returns, after "that".
        body: lines of the solution, without indentation.
        draw: makes the arguments of one call.

    Raises:
        ValueError: the inputs hardly differ in their results; the family is badly made.
    """
    name = signature.partition("(")[0]
    solution = f"def {signature}:\n" + "\n".join(f"    {line}" for line in body.strip("\n").splitlines()) + "\n"
    space: dict[str, Any] = {}
    exec(solution, space)  # our own text, from the module `coding`
    results: dict[str, tuple[Arguments, Any]] = {}
    for _ in range(MAX_DRAWS):
        arguments = draw(rng)
        results.setdefault(repr(arguments), (arguments, space[name](*_copy(arguments))))
        pairs = list(results.values())
        hidden = pairs[EXAMPLES:]
        if len(hidden) >= HIDDEN and len({repr(result) for _, result in hidden}) >= MIN_RESULTS:
            return Problem(name, signature, wish, solution, pairs[:EXAMPLES], hidden[-HIDDEN:])
    raise ValueError(f"{signature}: {MAX_DRAWS} inputs give fewer than {MIN_RESULTS} results or {HIDDEN} tests")


def _copy(arguments: Arguments) -> Arguments:
    """Return a copy, because a solution may change its arguments."""
    return [list(argument) if isinstance(argument, list) else argument for argument in arguments]


def numbers(rng: Random, low: int = -20, high: int = 40, most: int = 8) -> list[int]:
    """Return a list of whole numbers, sometimes an empty one."""
    return [rng.randint(low, high) for _ in range(rng.randint(0, most))]


WORDS = (
    "amber",
    "birch",
    "cloud",
    "delta",
    "ember",
    "fern",
    "grape",
    "heron",
    "iris",
    "jade",
    "kelp",
    "lemon",
    "maple",
    "north",
)


def count_letters(rng: Random, level: int) -> Problem:
    """Count some letters; in either case; how often each one occurs."""
    letters = "".join(sorted(rng.sample("aeiorstln", 3)))
    if level == 1:
        wish, body = "in small letters", f"return sum(c in {letters!r} for c in text)"
    elif level == 2:
        wish, body = "in small or capital letters", f"return sum(c in {letters!r} for c in text.lower())"
    else:
        return problem(
            rng,
            "count_letters(text)",
            f"returns a dict from each of the letters {', '.join(letters)} that occurs in a text, as a small or capital letter, "
            "to the number of its occurrences",
            f"text = text.lower()\nreturn {{c: text.count(c) for c in {letters!r} if c in text}}",
            lambda rng: [_sentence(rng)],
        )
    return problem(
        rng,
        "count_letters(text)",
        f"returns how often the letters {', '.join(letters)} occur in a text {wish}, all together",
        body,
        lambda rng: [_sentence(rng)],
    )


def cipher(rng: Random, level: int) -> Problem:
    """Shift small letters; capital ones too; by the place of the letter."""
    shift = rng.randint(3, 20)
    by = f"{shift} * i" if level == 3 else str(shift)
    said = {
        1: f"each small letter a to z is replaced by the one {shift} places later in the alphabet (after z comes a). All other "
        "characters stay",
        2: f"each letter a to z and A to Z is replaced by the one {shift} places later in the alphabet, in its own case (after z "
        "comes a). All other characters stay",
        3: f"the small letter at index i of the text (from 0) is replaced by the one {shift} * i places later in the alphabet "
        "(after z comes a). All other characters stay, and count for the index",
    }
    starts = "(('a', 'z'), ('A', 'Z'))" if level == 2 else "(('a', 'z'),)"
    body = (
        f"found = ''\nfor i, c in enumerate(text):\n    for low, high in {starts}:\n        if low <= c <= high:\n"
        f"            c = chr((ord(c) - ord(low) + {by}) % 26 + ord(low))\n            break\n    found += c\nreturn found"
    )
    return problem(rng, "cipher(text)", f"returns a text in which {said[level]}", body, lambda rng: [_sentence(rng)])


def run_length(rng: Random, level: int) -> Problem:
    """Encode runs of letters; leave short ones; decode."""
    least = rng.randint(2, 3)
    if level == 3:
        return problem(
            rng,
            "expand(text)",
            f"takes a text of letters, each followed by a number, and returns each letter repeated {least} times as often as "
            "its number says",
            f"import re\nreturn ''.join(c * ({least} * int(n)) for c, n in re.findall(r'([a-z])(\\d+)', text))",
            lambda rng: ["".join(f"{rng.choice('abc')}{rng.randint(0, 12)}" for _ in range(rng.randint(0, 5)))],
        )
    short = "" if level == 1 else f" A run of fewer than {least + 1} letters stays as it is, without a number"
    end = f"c + str(len(r)) if len(r) > {0 if level == 1 else least} else r"
    return problem(
        rng,
        "shorten(text)",
        "replaces each run of equal letters of a text by the letter and the length of the run, and returns the result, such as "
        f"'a5b4' for 'aaaaabbbb'.{short}",
        f"import itertools\nruns = [(c, ''.join(g)) for c, g in itertools.groupby(text)]\nreturn ''.join({end} for c, r in runs)",
        lambda rng: ["".join(rng.choice("abc") * rng.randint(1, 6) for _ in range(rng.randint(0, 6)))],
    )


def word_order(rng: Random, level: int) -> Problem:
    """Sort words by length; by a letter; group them."""
    place = rng.randint(1, 3)
    if level == 3:
        return problem(
            rng,
            "word_order(text)",
            f"returns a dict from the character at index {place} of a word to the alphabetical list of the different words with "
            "it, for the words of a text (which are separated by spaces)",
            f"found = {{}}\nfor word in sorted(set(text.split())):\n    found.setdefault(word[{place}], []).append(word)\nreturn found",
            lambda rng: [_words(rng)],
        )
    key, said = (
        ("(len(w), w)", "by length, the shortest first, and equally long ones alphabetically")
        if level == 1
        else (f"(w[{place}], w)", f"by their character at index {place}, and those with the same one alphabetically")
    )
    return problem(
        rng,
        "word_order(text)",
        f"returns a list of the words of a text (which are separated by spaces), sorted {said}. Repeated words stay",
        f"return sorted(text.split(), key=lambda w: {key})",
        lambda rng: [_words(rng)],
    )


def brackets(rng: Random, level: int) -> Problem:
    """Say whether brackets match; how deep they go; where they break."""
    kinds = {1: "()", 2: "()", 3: "()[]"}[level]
    extra = rng.randint(2, 9)
    if level == 1:
        wish = f"returns {extra} times the number of brackets in a text of ( and ) that have no partner"
        body = f"depth = alone = 0\nfor c in text:\n    if c == '(':\n        depth += 1\n    elif depth:\n        depth -= 1\n    else:\n        alone += 1\nreturn {extra} * (depth + alone)"
    elif level == 2:
        wish = (
            f"reads a text of ( and ) from left to right, in which ( adds {extra} to a depth that begins at 0 and ) takes 1 "
            "from it, and returns the largest depth that occurs; for an empty text that is 0"
        )
        body = f"depth = most = 0\nfor c in text:\n    depth += {extra} if c == '(' else -1\n    most = max(most, depth)\nreturn most"
    else:
        wish = (
            "returns the index (from 0) of the first closing bracket in a text of ( ) [ ] whose partner is missing or of the "
            f"other kind; -{extra} if there is no such bracket, although some open brackets may be left"
        )
        body = f"stack = []\nfor i, c in enumerate(text):\n    if c in '([':\n        stack.append(c)\n    elif not stack or stack.pop() + c not in ('()', '[]'):\n        return i\nreturn -{extra}"
    return problem(
        rng,
        "brackets(text)",
        wish,
        body,
        lambda rng: ["".join(rng.choice(kinds + kinds[0] * (level == 2)) for _ in range(rng.randint(0, 12)))],
    )


def table_text(rng: Random, level: int) -> Problem:
    """Read lines of ``name:number``: one sum, a sum per name, the best name."""
    factor = rng.randint(2, 9)
    read = "rows = [(line.split(':')[0], int(line.split(':')[1])) for line in text.splitlines()]\n"
    if level == 1:
        wish, body = f"returns {factor} times the sum of all numbers", f"return {factor} * sum(n for _, n in rows)"
    elif level == 2:
        wish = f"returns a dict from each name to {factor} times the sum of its numbers"
        body = f"found = {{}}\nfor name, n in rows:\n    found[name] = found.get(name, 0) + {factor} * n\nreturn found"
    else:
        wish = (
            "returns the list of all different names, the one with the largest sum of its numbers first, and those with equal "
            "sums alphabetically"
        )
        body = "found = {}\nfor name, n in rows:\n    found[name] = found.get(name, 0) + n\nreturn sorted(found, key=lambda k: (-found[k], k))"
    return problem(
        rng,
        "table_text(text)",
        f"takes a text whose lines are a name, a colon and a whole number, and {wish}",
        read + body,
        lambda rng: ["\n".join(f"{rng.choice(WORDS[:6])}:{rng.randint(-9, 99)}" for _ in range(rng.randint(1, 6)))],
    )


def _words(rng: Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 8)))


def _sentence(rng: Random) -> str:
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))
    return rng.choice((text, text.title(), f"{text}!", f"{text.capitalize()}."))


TEXT = (count_letters, cipher, run_length, word_order, brackets, table_text)


def filter_sum(rng: Random, level: int) -> Problem:
    """Add up the numbers that meet one, two or three conditions."""
    divisor, least = rng.randint(2, 5), rng.randint(-5, 10)
    tests = [f"n % {divisor} == 0", f"n > {least}", "place % 2 == 0"][:level]
    said = [f"are divisible by {divisor}", f"are greater than {least}", "stand at an even index (the first index is 0)"]
    return problem(
        rng,
        "filter_sum(numbers)",
        f"returns the sum of those numbers in a list that {' and '.join(said[:level])}",
        f"return sum(n for place, n in enumerate(numbers) if {' and '.join(tests)})",
        lambda rng: [numbers(rng)],
    )


def remap(rng: Random, level: int) -> Problem:
    """Map a list; filter it first; keep each result once."""
    factor, offset, divisor = rng.randint(2, 9), rng.randint(1, 9), rng.randint(2, 4)
    keep = f" if n % {divisor}" if level > 1 else ""
    said = f" after leaving out those divisible by {divisor}" if level > 1 else ""
    once = ", and keeps only the first of equal results" if level > 2 else ""
    body = f"found = [n * {factor} + {offset} for n in numbers{keep}]\n"
    body += "return list(dict.fromkeys(found))" if level > 2 else "return found"
    return problem(
        rng,
        "remap(numbers)",
        f"returns a list of the numbers{said}, in their order, each multiplied by {factor} and then increased by {offset}{once}",
        body,
        lambda rng: [numbers(rng, 0, 9)],
    )


def rotate(rng: Random, level: int) -> Problem:
    """Rotate a list by a constant; by an argument of either sign; each row of a table."""
    steps = rng.randint(1, 3)
    if level == 1:
        return problem(
            rng,
            "rotate(items)",
            f"returns a list rotated to the left by {steps}: each of the first {steps} items moves to the end. Any list "
            "length works, and an empty list stays empty",
            f"if not items:\n    return []\nk = {steps} % len(items)\nreturn items[k:] + items[:k]",
            lambda rng: [numbers(rng)],
        )
    if level == 2:
        return problem(
            rng,
            "rotate(items, steps)",
            "returns a list rotated to the left by a number of steps, which may be negative (to the right) or larger than the "
            "list. An empty list stays empty",
            "if not items:\n    return []\nk = steps % len(items)\nreturn items[k:] + items[:k]",
            lambda rng: [numbers(rng), rng.randint(-12, 12)],
        )
    return problem(
        rng,
        "rotate(rows)",
        f"returns a table (a list of lists of equal length) in which row number i (from 0) is rotated to the left by {steps} * i",
        f"return [row[{steps} * i % len(row):] + row[:{steps} * i % len(row)] if row else [] for i, row in enumerate(rows)]",
        lambda rng: [_table(rng)],
    )


def digits(rng: Random, level: int) -> Problem:
    """Add digits; weigh them by their place; repeat that until one digit is left."""
    factor = rng.randint(2, 7)
    if level == 1:
        body, wish = (
            f"return {factor} * sum(map(int, str(n)))",
            f"returns {factor} times the sum of the decimal digits of n",
        )
    elif level == 2:
        body = f"return sum(int(d) * ({factor} if place % 2 else 1) for place, d in enumerate(reversed(str(n))))"
        wish = (
            f"returns the sum of the decimal digits of n, in which every second digit, counted from the right, is taken {factor} "
            "times (the last digit once, the one before it that often, and so on)"
        )
    else:
        body = f"while n > {factor + 9}:\n    n = sum(map(int, str(n)))\nreturn n"
        wish = f"replaces n by the sum of its decimal digits for as long as n is greater than {factor + 9}, and returns what is left"
    return problem(
        rng, "digits(n)", f"takes a whole number n of 0 or more and {wish}", body, lambda rng: [rng.randint(0, 10**6)]
    )


def to_base(rng: Random, level: int) -> Problem:
    """Write a number in another base; negative ones too; read it back."""
    base = rng.randint(3, 7)
    lines = f"if n == 0:\n    return '0'\nsign, n, text = '-' * (n < 0), abs(n), ''\nwhile n:\n    text, n = str(n % {base}) + text, n // {base}\nreturn sign + text"
    if level == 3:
        return problem(
            rng,
            "from_base(text)",
            f"returns the whole number that a text writes in base {base}; the text may begin with a minus sign, and contains "
            "underscores that mean nothing",
            f"return int(text.replace('_', ''), {base})",
            lambda rng: [_in_base(rng, base)],
        )
    least = 0 if level == 1 else -3000
    also = "" if level == 1 else ", with a minus sign before it for a negative one"
    return problem(
        rng,
        "to_base(n)",
        f"returns a whole number written in base {base} as a string{also}",
        lines,
        lambda rng: [rng.randint(least, 3000)],
    )


def recurrence(rng: Random, level: int) -> Problem:
    """Follow a recurrence of one, two or three terms, modulo a number."""
    modulus = rng.randint(50, 150)
    starts = [rng.randint(0, 9) for _ in range(level)]
    factors = [rng.randint(1, 5) for _ in range(level)]
    add = rng.randint(1, 5)
    terms = " + ".join(f"{factor} * f(n-{back + 1})" for back, factor in enumerate(factors))
    first = ", ".join(f"f({place}) = {value}" for place, value in enumerate(starts))
    update = " + ".join(f"{factor} * f[-{back + 1}]" for back, factor in enumerate(factors))
    return problem(
        rng,
        "f(n)",
        f"returns f(n) of this sequence, for n of 0 or more: {first}, and every later f(n) = ({terms} + {add}) modulo {modulus}",
        f"f = {starts}\nwhile len(f) <= n:\n    f.append(({update} + {add}) % {modulus})\nreturn f[n]",
        lambda rng: [rng.randint(0, 60)],
    )


def pairs(rng: Random, level: int) -> Problem:
    """Count pairs with a sum; with a difference and an order; list the pairs."""
    target = rng.randint(5, 15)
    loops = "for i in range(len(numbers)) for j in range(i + 1, len(numbers))"
    tests = {
        1: f"numbers[i] + numbers[j] == {target}",
        2: f"numbers[j] - numbers[i] == {target - 3}",
        3: f"numbers[i] + numbers[j] == {target}",
    }
    what = {
        1: f"returns the number of pairs of places i < j in a list with numbers[i] + numbers[j] == {target}",
        2: f"returns the number of pairs of places i < j in a list with numbers[j] - numbers[i] == {target - 3}",
        3: f"returns all lists [i, j] of places i < j in a list with numbers[i] + numbers[j] == {target}, in ascending order",
    }
    result = f"[[i, j] {loops} if {tests[level]}]"
    return problem(
        rng,
        "pairs(numbers)",
        what[level],
        f"return {result}" if level == 3 else f"return len({result})",
        lambda rng: [numbers(rng, 0, 15, 9)],
    )


def grid(rng: Random, level: int) -> Problem:
    """Mirror a table; turn it; add up its border."""
    factor = rng.randint(2, 5)
    if level == 1:
        wish, body = (
            f"returns the table with each row reversed and each number multiplied by {factor}",
            f"return [[{factor} * n for n in reversed(row)] for row in rows]",
        )
    elif level == 2:
        wish, body = (
            f"returns the table turned clockwise by 90 degrees, with {factor} added to each number. A table without numbers "
            "gives an empty list",
            f"return [[n + {factor} for n in column] for column in zip(*reversed(rows))]",
        )
    else:
        wish, body = (
            f"returns {factor} times the sum of the numbers in the first row, the last row, the first column and the last "
            "column, each number counted once",
            f"high = len(rows)\nreturn {factor} * sum(n for i, row in enumerate(rows) for j, n in enumerate(row) "
            "if i in (0, high - 1) or j in (0, len(row) - 1))",
        )
    return problem(
        rng,
        "grid(rows)",
        f"takes a table (a list of lists of equal length) and {wish}",
        body,
        lambda rng: [_table(rng)],
    )


def _table(rng: Random) -> list[list[int]]:
    width = rng.randint(1, 4)
    return [[rng.randint(0, 20) for _ in range(width)] for _ in range(rng.randint(1, 4))]


def _in_base(rng: Random, base: int) -> str:
    text = "".join(str(rng.randrange(base)) for _ in range(rng.randint(1, 7)))
    place = rng.randint(0, len(text) - 1)
    return rng.choice(("", "-")) + (text if place == 0 else f"{text[:place]}_{text[place:]}")


NUMBERS = (filter_sum, remap, rotate, digits, to_base, recurrence, pairs, grid)


FAMILIES: dict[str, Family] = {family.__name__: family for family in (*NUMBERS, *TEXT)}
BLOCK = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class Coding:
    """See `evaluation.case.Suite`."""

    name = "coding"

    def __init__(self, box: CodeBox) -> None:
        self.box = box

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return problems of all families and levels."""
        return draw_cases(self.name, FAMILIES, seed, count)

    async def open(self) -> None:
        """Prove the sandbox."""
        await self.box.open()

    async def play(self, case: Case, talk: Talk) -> Grade:
        """Ask for the function and run it on the hidden inputs."""
        problem: Problem = case.problem
        said = await talk.ask(problem.text)
        if said.defect == "empty":
            return Grade(said.defect)
        code = code_of(said.text, problem.name)
        if code is None:
            return Grade(said.defect or "no_code", f"the reply has no code block and no function {problem.name}")
        ran = await self.box.run(code, problem.name, [given for given, _ in problem.hidden])
        if ran.reason:
            # Half a program does not compile; what to mend is the length.
            return Grade(said.defect or ran.reason, ran.detail)
        wrong = [
            (given, expected, result)
            for (given, expected), result in zip(problem.hidden, ran.results, strict=True)
            if not same(expected, result)
        ]
        if not wrong:
            return Grade()
        given, expected, result = wrong[0]
        shown = f"{problem.name}({', '.join(map(repr, given))}) is {expected!r}, not {repr(result)[:200]}"
        return Grade("wrong_result", f"{len(wrong)} of {len(problem.hidden)} hidden tests fail: {shown}")

    async def close(self) -> None:
        """End the sandboxes."""
        await self.box.close()


def code_of(reply: str, name: str) -> str | None:
    """Return the first code block that defines a function, or the first block, or a reply that is code; None without code."""
    blocks = BLOCK.findall(reply)
    definition = re.compile(rf"^def {name}\(", re.MULTILINE)
    defining = [text for text in (*blocks, reply) if definition.search(text)]
    return next(iter([*defining, *blocks]), None)
