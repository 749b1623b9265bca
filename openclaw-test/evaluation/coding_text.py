"""Problems about text: each function draws one at a level from 1 to 3; see `coding_problem.problem`."""

from __future__ import annotations

from random import Random

from evaluation.coding_problem import Problem, problem

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
