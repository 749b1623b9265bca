"""Durations such as 1h30m. Mistakes in reading text: input that is allowed, and that nobody tried."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def durations(random: Random) -> Draft:
    """Durations such as 1h30m."""
    package, longest = package_name(random), random.choice(("d", "w"))
    seconds = {"d": 86_400, "w": 604_800}[longest]
    text = code(
        '''
        """Durations such as 1h30m."""

        import re

        UNITS = {"s": 1, "m": 60, "h": 3600, "@longest@": @seconds@}
        PART = re.compile(r"(\\d+(?:\\.\\d+)?)([a-z])")


        def parse(text):
            """Return the seconds of a duration; a number alone is seconds, and ``-`` may stand before it."""
            text = text.strip().lower()
            negative = text.startswith("-")
            rest = text.lstrip("+-") if text[:1] in "+-" else text
            if re.fullmatch(r"\\d+(\\.\\d+)?", rest):
                total = float(rest)
            else:
                parts = PART.findall(rest)
                if not parts or "".join(number + unit for number, unit in parts) != rest:
                    raise ValueError(f"{text!r} is no duration")
                total = sum(float(number) * UNITS[unit] for number, unit in parts)
            return -total if negative else total


        def shown(seconds):
            """Return whole seconds as text with the largest units first; 0 is 0s."""
            if seconds < 0:
                return "-" + shown(-seconds)
            found = ""
            for unit, size in sorted(UNITS.items(), key=lambda pair: -pair[1]):
                count, seconds = divmod(seconds, size)
                found += f"{count}{unit}" if count else ""
            return found or "0s"
        ''',
        longest=longest,
        seconds=seconds,
    )
    mistake = random.choice(
        (
            Mistake(
                'PART = re.compile(r"(\\d+(?:\\.\\d+)?)([a-z])")',
                'PART = re.compile(r"(\\d+)([a-z])")',
                "`parse` refuses `1.5h`, which the page says is fine; plain `1.5` works.",
                ("test_parts_of_a_unit",),
            ),
            Mistake(
                'if not parts or "".join(number + unit for number, unit in parts) != rest:',
                "if not parts:",
                "`parse` accepts nonsense between the parts: `1h banana 5m` is 3900 seconds. It should be refused.",
                ("test_nonsense_is_refused",),
            ),
            Mistake(
                "return -total if negative else total",
                "return total",
                "The sign is ignored: `-5m` is 300 instead of -300.",
                ("test_below_zero",),
                held_out=True,
            ),
            Mistake(
                'return found or "0s"',
                "return found",
                "`shown(0)` is an empty text; we want `0s`.",
                ("test_nothing_is_shown_as_0s",),
            ),
        )
    )
    hidden = """
        def test_parts_of_a_unit(self):
            self.assertEqual([parse("1.5h"), parse("0.5m"), parse("1.5")], [5400, 30, 1.5])

        def test_nonsense_is_refused(self):
            for text in ("1h banana 5m", "5m?", "h", "", "1h 5m"):
                with self.assertRaises(ValueError, msg=text):
                    parse(text)

        def test_below_zero(self):
            self.assertEqual([parse("-5m"), parse("-1h30m"), parse("+2s")], [-300, -5400, 2])

        def test_nothing_is_shown_as_0s(self):
            self.assertEqual([shown(0), shown(61), shown(@seconds@), shown(-60)], ["0s", "1m1s", "1@longest@", "-1m"])

        def test_all_units(self):
            self.assertEqual(parse("1@longest@1h1m1s"), @seconds@ + 3661)
        """
    visible = """
        def test_hours_and_minutes(self):
            self.assertEqual((parse("1h30m"), parse("90"), shown(5400)), (5400, 90, "1h30m"))
        """
    names = {"longest": longest, "seconds": seconds}
    return Draft(
        "parsing",
        package,
        "durations.py",
        {"durations.py": text},
        cases(package, "durations", "parse, shown", visible, **names),
        cases(package, "durations", "parse, shown", hidden, plain=True, **names),
        mistake,
    )
