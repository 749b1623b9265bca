"""Tasks that find, count and change text."""

from __future__ import annotations

from collections import Counter
from random import Random

from agentrl.tasks.shell.draft import ANSWER, Draft, absent, distinct, exact, lines, word


def find_files(rng: Random) -> Draft:
    """List files by their ending and size."""
    ending, limit = rng.choice(["log", "dat", "bak"]), rng.randrange(300, 700)
    files: dict[str, str] = {}
    for name in distinct(rng, 14):
        folder = rng.choice(["data", "data/old", "data/new/raw", "data/new"])
        files[f"{folder}/{name}.{rng.choice([ending, ending, 'txt', 'csv'])}"] = "x" * rng.randrange(1000)
    files[f"data/{word(rng)}.{ending}"] = "x" * (limit + 1)
    found = sorted(path for path, text in files.items() if path.endswith(ending) and len(text) > limit)
    return Draft(
        f"Find all files below the folder data whose names end in .{ending} and that have more than {limit} bytes. "
        f"Write their paths, such as data/new/some.{ending}, into {ANSWER}, one a line, sorted by byte value.",
        files,
        [lines(ANSWER, found)],
        f"find data -type f -name '*.{ending}' -size +{limit}c | LC_ALL=C sort > {ANSWER}",
    )


def count_errors(rng: Random) -> Draft:
    """Count matching lines per file."""
    level = rng.choice(["ERROR", "WARN", "FATAL"])
    files: dict[str, str] = {}
    counts: list[str] = []
    for name in sorted(distinct(rng, 6)):
        levels = [rng.choice(["INFO", "DEBUG", "ERROR", "WARN", "FATAL"]) for _ in range(rng.randrange(10, 30))]
        files[f"logs/{name}.log"] = "".join(f"{each} {rng.choice(['no', 'one'])} {word(rng)}\n" for each in levels)
        files[f"logs/{name}.log"] += f"INFO the last line is not an {level}\n"
        counts.append(f"{name}.log {levels.count(level)}")
    return Draft(
        f"Each line of the files in the folder logs begins with a level. For every file, count the lines of level "
        f"{level}. Write lines such as 'some.log 3' into {ANSWER}, sorted by name; files without such lines too.",
        files,
        [lines(ANSWER, counts)],
        f'cd logs\nfor f in *.log; do echo "$f $(grep -c "^{level} " "$f")"; done | LC_ALL=C sort > ../{ANSWER}',
    )


def replace_setting(rng: Random) -> Draft:
    """Change a setting in one section of a file, and nothing else."""
    sections, key = distinct(rng, 4), rng.choice(["port", "timeout", "retries"])
    chosen, new = rng.choice(sections), rng.randrange(10_000, 20_000)
    old = {section: rng.randrange(1000, 9999) for section in sections}

    def written(values: dict[str, int]) -> str:
        return "".join(
            f"[{section}]\n# {key} = 1\nname = {section}\n{key} = {number}\n\n" for section, number in values.items()
        )

    return Draft(
        f"In the file service.ini, set {key} of the section {chosen} to {new}. Change nothing else.",
        {"service.ini": written(old)},
        [exact("service.ini", written({**old, chosen: new}))],
        f"sed -i '/^\\[{chosen}\\]/,/^$/s/^{key} = .*/{key} = {new}/' service.ini",
    )


def busiest_address(rng: Random) -> Draft:
    """Analyse a web server's log."""
    addresses = [f"10.{rng.randrange(256)}.{rng.randrange(256)}.{number}" for number in range(6)]
    status = rng.choice([500, 502, 503])
    amounts = rng.sample(range(5, 25), len(addresses))
    rows = [(each, status) for each, amount in zip(addresses, amounts, strict=True) for _ in range(amount)]
    rows += [(rng.choice(addresses), rng.choice([200, 301, 404])) for _ in range(120)]
    rng.shuffle(rows)
    log = "".join(
        f'{address} - - [12/Mar/2026:10:{rng.randrange(60):02}:{rng.randrange(60):02}] "GET /{word(rng)} HTTP/1.1" '
        f"{code} {rng.choice([status, rng.randrange(99, 9999)])}\n"
        for address, code in rows
    )
    counted = Counter(address for address, code in rows if code == status).most_common(3)
    return Draft(
        f"In access.log, the number after the quoted request is the status, and the last one is the size. Which three "
        f"addresses have the most requests with status {status}? Write lines such as '10.1.2.3 17' into {ANSWER}, the "
        "largest count first.",
        {"access.log": log},
        [lines(ANSWER, (f"{address} {count}" for address, count in counted))],
        f"""awk '$(NF-1) == {status} {{ n[$1]++ }} END {{ for (a in n) print a, n[a] }}' access.log \\
    | sort -k2,2nr | head -n 3 > {ANSWER}""",
    )


def join_notes(rng: Random) -> Draft:
    """Join numbered files in the order of their numbers, without comments."""
    numbers = rng.sample(range(1, 120), 7)
    kept = {number: word(rng) for number in numbers}
    files = {f"notes/part{number}.txt": f"# {word(rng)}\n{text}\n" for number, text in kept.items()}
    return Draft(
        "Join the files notes/part*.txt into all.txt in the order of their numbers, so part9 comes before part10. Leave "
        "out the lines that begin with #. Then remove the folder notes.",
        files,
        [lines("all.txt", (kept[number] for number in sorted(numbers))), absent("notes")],
        "ls notes | sort -V | while read -r f; do grep -v '^#' \"notes/$f\"; done > all.txt\nrm -r notes",
    )
