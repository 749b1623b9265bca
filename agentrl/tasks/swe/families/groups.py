"""Groups of records. Mistakes in the use of the standard library: it does something else than its name suggests."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def groups(random: Random) -> Draft:
    """Groups of records."""
    package, field = package_name(random), random.choice(("team", "city", "color", "level"))
    text = code(
        '''
        """Groups of records."""

        import itertools


        def by_@field@(records):
            """Return the names of the records of each @field@, in the order of the records."""
            ordered = sorted(records, key=lambda record: record["@field@"])
            return {
                value: [record["name"] for record in found]
                for value, found in itertools.groupby(ordered, key=lambda record: record["@field@"])
            }


        def empty(fields):
            """Return an empty list for each @field@."""
            return {name: [] for name in fields}


        def pairs(names, scores):
            """Return (name, score) of each name; a name without a score has None."""
            return list(itertools.zip_longest(names, scores[: len(names)]))
        ''',
        field=field,
    )
    mistake = random.choice(
        (
            Mistake(
                f'ordered = sorted(records, key=lambda record: record["{field}"])',
                "ordered = records",
                f"`by_{field}` loses records if equal values of {field} do not stand next to each other in the input.",
                ("test_equal_values_far_apart",),
            ),
            Mistake(
                "return {name: [] for name in fields}",
                "return dict.fromkeys(fields, [])",
                f"After `empty(...)`, appending to the list of one {field} changes the lists of all the others.",
                ("test_the_lists_are_separate",),
                held_out=True,
            ),
            Mistake(
                "list(itertools.zip_longest(names, scores[: len(names)]))",
                "list(zip(names, scores))",
                "`pairs` drops names that have no score yet; they should be there with None.",
                ("test_a_name_without_a_score",),
            ),
        )
    )
    hidden = """
        def test_equal_values_far_apart(self):
            records = [{"@field@": v, "name": n} for v, n in (("x", "a"), ("y", "b"), ("x", "c"))]
            self.assertEqual(by_@field@(records), {"x": ["a", "c"], "y": ["b"]})

        def test_the_lists_are_separate(self):
            lists = empty(["x", "y"])
            lists["x"].append(1)
            self.assertEqual(lists, {"x": [1], "y": []})

        def test_a_name_without_a_score(self):
            self.assertEqual(pairs(["a", "b"], [1]), [("a", 1), ("b", None)])

        def test_more_scores_than_names(self):
            self.assertEqual(pairs(["a"], [1, 2]), [("a", 1)])
        """
    shown = """
        def test_one_group(self):
            self.assertEqual(by_@field@([{"@field@": "x", "name": "a"}]), {"x": ["a"]})
        """
    return Draft(
        "api_misuse",
        package,
        "groups.py",
        {"groups.py": text},
        cases(package, "groups", f"by_{field}", shown, field=field),
        cases(package, "groups", f"by_{field}, empty, pairs", hidden, plain=True, field=field),
        mistake,
    )
