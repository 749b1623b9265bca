"""Tasks whose result is a program. It is tried on inputs that the agent never sees, where no answer is at hand."""

from __future__ import annotations

from collections import Counter
from random import Random

from agentrl.tasks.shell.draft import Draft, distinct, lines, word

MAX_SECONDS = 5
"""Of one trial; a program that runs longer has no output."""
BUGS = (
    ("range(len(numbers) - width + 1)", "range(len(numbers) - width)"),
    ("if best is None or total > best:", "if best is None or total < best:"),
    ("numbers[start : start + width]", "numbers[start : start + width - 1]"),
    ("best = None", "best = 0"),
)
WINDOW = '''"""Sums of windows."""


def {name}(numbers, width):
    """Return the largest sum of {word} neighbours: of `width` numbers in a row; None if there are fewer."""
    best = None
    for start in range(len(numbers) - width + 1):
        total = sum(numbers[start : start + width])
        if best is None or total > best:
            best = total
    return best
'''


def fix_function(rng: Random) -> Draft:
    """Mend a function of a small module."""
    name, note = f"best_{rng.choice(distinct(rng, 3))}", word(rng)
    right = WINDOW.format(name=name, word=note)
    good, bad = rng.choice(BUGS)
    wrong = right.replace(good, bad)
    inputs = [([rng.randrange(-90, 10) for _ in range(rng.randrange(4, 9))], rng.randrange(1, 4)) for _ in range(6)]
    inputs += [([-3, -2, -9, 40], 1), ([1], 2), ([-5, -7], 2), ([9, 1, -5], 2)]
    sums = [[sum(numbers[at : at + width]) for at in range(len(numbers) - width + 1)] for numbers, width in inputs]
    return Draft(
        f"The function {name} in windows.py does not do what its docstring says. Mend it; keep its name and arguments. "
        "numbers is a list of whole numbers, and width is at least 1.",
        {"windows.py": wrong},
        [lines("trial/output.txt", (max(each, default=None) for each in sums))],
        f"cat > windows.py <<'END'\n{right}END",
        trial=f"timeout {MAX_SECONDS} python3 trial/run.py > trial/output.txt",
        trial_files={
            "trial/run.py": f"import sys\n\nsys.path.insert(0, '.')\nimport windows\n\nfor numbers, width in {inputs}:\n"
            f"    print(windows.{name}(numbers, width))\n"
        },
    )


def write_filter(rng: Random) -> Draft:
    """Write a shell script that counts words."""
    least, name = rng.randrange(2, 4), f"{word(rng)}.sh"
    texts = [" ".join(rng.choice(distinct(rng, 4)) for _ in range(40)) for _ in range(3)]
    vocabulary = distinct(rng, 6)
    texts = ["\n".join(" ".join(rng.choices(vocabulary, k=5)) for _ in range(6)) for _ in texts]
    files = {f"trial/{index}.in": f"{text}\n" for index, text in enumerate(texts)}
    checks = [
        lines(
            f"trial/{index}.out",
            sorted(f"{key} {count}" for key, count in Counter(text.split()).items() if count >= least),
        )
        for index, text in enumerate(texts)
    ]
    return Draft(
        f"Write the script {name}, to be run as 'bash {name}'. It reads text from its standard input and prints a line "
        f"such as 'word 3' for every word that occurs at least {least} times, sorted by byte value. White space "
        "separates words.",
        {},
        checks,
        f"cat > {name} <<'END'\ntr -s '[:space:]' '\\n' | grep . | LC_ALL=C sort | uniq -c \\\n"
        f"    | awk '$1 >= {least} {{ print $2, $1 }}' | LC_ALL=C sort\nEND",
        trial="\n".join(f"timeout {MAX_SECONDS} bash {name} < {path} > {path[:-2]}out" for path in files),
        trial_files=files,
    )
