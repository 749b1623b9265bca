"""Tables as CSV and JSON. Mistakes in the use of the standard library: it does something else than its name suggests."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def reports(random: Random) -> Draft:
    """Tables as CSV and JSON."""
    package, word = package_name(random), random.choice(("report", "sheet", "extract"))
    text = code(
        '''
        """A @word@ as text."""

        import csv
        import io
        import json


        def to_csv(rows):
            """Return rows as CSV with lines that end with a newline only."""
            out = io.StringIO()
            csv.writer(out, lineterminator="\\n").writerows(rows)
            return out.getvalue()


        def to_json(record):
            """Return a record as JSON: keys in order, letters of all languages as they are."""
            return json.dumps(record, sort_keys=True, ensure_ascii=False)


        def money(cents):
            """Return an amount of cents as text, such as 12.05."""
            sign, cents = ("-" if cents < 0 else ""), abs(cents)
            return f"{sign}{cents // 100}.{cents % 100:02d}"
        ''',
        word=word,
    )
    mistake = random.choice(
        (
            Mistake(
                'csv.writer(out, lineterminator="\\n").writerows(rows)',
                'out.writelines(",".join(map(str, row)) + "\\n" for row in rows)',
                f"The CSV of a {word} is broken when a value has a comma or a quote in it: other programs see too many columns.",
                ("test_values_with_commas_and_quotes",),
            ),
            Mistake(
                "sort_keys=True, ensure_ascii=False)",
                "sort_keys=True)",
                f"A {word} as JSON shows escape codes instead of letters such as é.",
                ("test_letters_stay",),
            ),
            Mistake(
                'sign, cents = ("-" if cents < 0 else ""), abs(cents)',
                'sign = ""',
                "`money(-5)` is `-1.95`. It should be `-0.05`; amounts below zero are all wrong.",
                ("test_amounts_below_zero",),
                held_out=True,
            ),
        )
    )
    hidden = """
        def test_values_with_commas_and_quotes(self):
            self.assertEqual(to_csv([["a,b", 'say "x" now', 3]]), '"a,b","say ""x"" now",3\\n')

        def test_letters_stay(self):
            self.assertEqual(to_json({"b": "é", "a": 1}), '{"a": 1, "b": "é"}')

        def test_amounts_below_zero(self):
            self.assertEqual([money(-5), money(-105), money(-100)], ["-0.05", "-1.05", "-1.00"])

        def test_amounts_above_zero(self):
            self.assertEqual([money(0), money(7), money(1205)], ["0.00", "0.07", "12.05"])
        """
    shown = """
        def test_plain_values(self):
            self.assertEqual(to_csv([["a", 1], ["b", 2]]), "a,1\\nb,2\\n")
            self.assertEqual(to_json({"a": 1}), '{"a": 1}')
        """
    return Draft(
        "api_misuse",
        package,
        "reports.py",
        {"reports.py": text},
        cases(package, "reports", "to_csv, to_json", shown),
        cases(package, "reports", "money, to_csv, to_json", hidden, plain=True),
        mistake,
    )
