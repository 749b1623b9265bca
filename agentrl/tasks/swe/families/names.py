"""Texts and their ends. Mistakes in the use of the standard library: it does something else than its name suggests."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def names(random: Random) -> Draft:
    """Texts and their ends."""
    package = package_name(random)
    ending = random.choice((".tar", ".text", ".note", ".cats"))
    text = code(
        '''
        """Names of files."""


        def stem(name):
            """Return a name without the ending @ending@, if it has it."""
            return name.removesuffix("@ending@")


        def natural(names):
            """Return the names in order; numbers in them count as numbers."""
            return sorted(names, key=key)


        def key(name):
            """Return what a name is ordered by."""
            parts = [""]
            for letter in name.lower():
                if letter.isdigit() != parts[-1][-1:].isdigit():
                    parts.append("")
                parts[-1] += letter
            return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


        def common(one, other):
            """Return the names that both lists have, in the order of the first one, each once."""
            return [name for name in dict.fromkeys(one) if name in set(other)]
        ''',
        ending=ending,
    )
    mistake = random.choice(
        (
            Mistake(
                f'return name.removesuffix("{ending}")',
                f'return name.rstrip("{ending}")',
                f"`stem` eats letters of the name itself: of `sta{ending[1]}{ending}` too much is gone. Only the ending {ending} should go.",
                ("test_only_the_ending_goes",),
            ),
            Mistake(
                '(1, int(part), "") if part.isdigit()',
                "(1, 0, part) if part.isdigit()",
                "`natural` sorts numbers as text: `file10` comes before `file9`.",
                ("test_numbers_are_numbers",),
                held_out=True,
            ),
            Mistake(
                "[name for name in dict.fromkeys(one) if name in set(other)]",
                "list(set(one) & set(other))",
                "`common` returns the names in another order each time the program runs. It has to keep the order of the first list.",
                ("test_the_order_of_the_first_list",),
            ),
        )
    )
    hidden = """
        def test_only_the_ending_goes(self):
            letters = "".join(dict.fromkeys("@ending@"[1:]))
            self.assertEqual(stem("x" + letters + "@ending@"), "x" + letters)
            self.assertEqual(stem("plain" + letters), "plain" + letters)

        def test_numbers_are_numbers(self):
            self.assertEqual(natural(["file10", "file9", "File1"]), ["File1", "file9", "file10"])

        def test_the_order_of_the_first_list(self):
            many = [f"name{number * 7 % 101}" for number in range(101)]
            self.assertEqual(common(many + many, list(reversed(many))), many)

        def test_no_common_name(self):
            self.assertEqual(common(["a"], ["b"]), [])
        """
    shown = """
        def test_without_the_ending(self):
            self.assertEqual(stem("b"), "b")

        def test_words_in_order(self):
            self.assertEqual(natural(["b", "a"]), ["a", "b"])
        """
    return Draft(
        "api_misuse",
        package,
        "names.py",
        {"names.py": text},
        cases(package, "names", "natural, stem", shown),
        cases(package, "names", "common, natural, stem", hidden, plain=True, ending=ending),
        mistake,
    )
