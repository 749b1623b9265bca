"""Tasks about tables, CSV and JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random

from agentrl.tasks.shell.draft import ANSWER, Draft, distinct, lines, table, value, word


def _python(program: str) -> str:
    """Return a shell command that runs a program."""
    return f"python3 - <<'END'\n{program.strip()}\nEND"


def sum_column(rng: Random) -> Draft:
    """Sum a column per key."""
    keys, column = distinct(rng, 4), rng.choice([3, 4])
    rows = [(word(rng), rng.choice(keys), rng.randrange(1000), rng.randrange(1000)) for _ in range(40)]
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row[1]] += int(row[column - 1])
    return Draft(
        f"The columns of sales.txt are separated by white space. Sum column {column} for every name in column 2. Write "
        f"lines such as 'name 12' into {ANSWER}, sorted by name.",
        {"sales.txt": "".join(f"{a:<24} {b:<10}{c:>6} {d:>6}\n" for a, b, c, d in rows)},
        [lines(ANSWER, (f"{key} {sums[key]}" for key in sorted(sums)))],
        f"awk '{{ s[$2] += ${column} }} END {{ for (k in s) print k, s[k] }}' sales.txt | LC_ALL=C sort > {ANSWER}",
    )


def filter_json(rng: Random) -> Draft:
    """Filter and sort records."""
    teams = distinct(rng, 3)
    chosen, limit = rng.choice(teams), rng.randrange(30, 50)
    ages = rng.sample(range(18, 80), 20)
    people = [{"name": word(rng), "team": rng.choice([chosen, *teams]), "age": age} for age in ages]
    found = sorted(
        (each for each in people if each["team"] == chosen and each["age"] >= limit), key=lambda e: -e["age"]
    )
    return Draft(
        f"people.json is a list of records. Take those of the team {chosen} with an age of at least {limit}, the oldest "
        "first. Write the list of their names to names.json.",
        {"people.json": json.dumps(people, indent=1)},
        [value("names.json", [each["name"] for each in found])],
        _python(f"""
import json
people = [p for p in json.load(open("people.json")) if p["team"] == "{chosen}" and p["age"] >= {limit}]
json.dump([p["name"] for p in sorted(people, key=lambda p: -p["age"])], open("names.json", "w"))
"""),
    )


def csv_to_json(rng: Random) -> Draft:
    """Group the rows of a CSV file into JSON."""
    groups = distinct(rng, 3)
    rows = [
        (rng.choice(groups), f"{word(rng)}, {rng.choice(['small', 'large'])}", rng.randrange(1, 500)) for _ in range(15)
    ]
    grouped: dict[str, dict[str, int]] = {}
    for group, item, price in rows:
        grouped.setdefault(group, {})[item] = price
    return Draft(
        "Turn items.csv into items.json: an object with a key per group, and as its value an object that leads from the "
        "item to its price, a number.",
        {"items.csv": "group,item,price\n" + "".join(f'{a},"{b}",{c}\n' for a, b, c in rows)},
        [value("items.json", {group: {**items} for group, items in grouped.items()})],
        _python("""
import csv, json
groups = {}
for row in csv.DictReader(open("items.csv")):
    groups.setdefault(row["group"], {})[row["item"]] = int(row["price"])
json.dump(groups, open("items.json", "w"))
"""),
    )


def merge_tables(rng: Random) -> Draft:
    """Join two CSV files by their key."""
    numbers = rng.sample(range(100, 1000), 12)
    names = {number: word(rng) for number in numbers}
    orders = [(f"o{index}", rng.choice([*numbers, 1]), rng.randrange(1, 99)) for index in range(18)]
    merged = [(order, names[number], amount) for order, number, amount in orders if number in names]
    return Draft(
        "orders.csv names customers by their id, customers.csv has their names. Write merged.csv with the header "
        "order,name,amount and a row per order, in the order of orders.csv. Leave out orders of unknown customers.",
        {
            "customers.csv": "id,name\n" + "".join(f"{number},{name}\n" for number, name in names.items()),
            "orders.csv": "order,customer,amount\n" + "".join(f"{a},{b},{c}\n" for a, b, c in orders),
        },
        [table("merged.csv", [("order", "name", "amount"), *merged])],
        'awk -F, -v OFS=, \'NR == FNR { name[$1] = $2; next } FNR == 1 { print "order,name,amount"; next } '
        "$2 in name { print $1, name[$2], $3 }' customers.csv orders.csv > merged.csv",
    )


def top_values(rng: Random) -> Draft:
    """Sort numbers of several files without duplicates."""
    count = rng.randrange(4, 9)
    files = {f"in/{name}.txt": [rng.randrange(-500, 5000) for _ in range(20)] for name in distinct(rng, 3)}
    numbers = sorted({number for each in files.values() for number in each}, reverse=True)
    return Draft(
        f"The files in the folder in have a number per line. Write the {count} largest different numbers of all files "
        f"into {ANSWER}, one a line, the largest first.",
        {path: "".join(f"{number}\n" for number in each) for path, each in files.items()},
        [lines(ANSWER, numbers[:count])],
        f"cat in/*.txt | sort -nru | head -n {count} > {ANSWER}",
    )
