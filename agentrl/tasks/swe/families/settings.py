"""Settings, one ``name = value`` per line. Mistakes in reading text: input that is allowed, and that nobody tried."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def settings(random: Random) -> Draft:
    """Settings, one ``name = value`` per line."""
    package, sign = package_name(random), random.choice(("=", ":"))
    text = code(
        '''
        """Settings: a name and a value per line."""


        def parse(text):
            """Return the settings of a text; ``#`` begins a comment, but not inside quotes."""
            found = {}
            for number, line in enumerate(text.splitlines(), 1):
                line = without_comment(line).strip()
                if not line:
                    continue
                name, sign, value = line.partition("@sign@")
                if not sign or not name.strip():
                    raise ValueError(f"line {number} is no setting")
                found[name.strip().lower()] = unquoted(value.strip())
            return found


        def without_comment(line):
            """Return a line without its comment."""
            quoted = False
            for at, letter in enumerate(line):
                if letter == '"':
                    quoted = not quoted
                elif letter == "#" and not quoted:
                    return line[:at]
            return line


        def unquoted(value):
            """Return a value without the quotes around it."""
            if len(value) >= 2 and value[0] == value[-1] == '"':
                return value[1:-1]
            return value
        ''',
        sign=sign,
    )
    mistake = random.choice(
        (
            Mistake(
                f'name, sign, value = line.partition("{sign}")',
                f'name, sign, value = line.rpartition("{sign}")',
                f"A value with a `{sign}` in it is torn apart: `url {sign} a{sign}b` becomes the setting `url {sign} a`.",
                ("test_a_value_with_the_sign",),
            ),
            Mistake(
                'elif letter == "#" and not quoted:',
                'elif letter == "#":',
                f'Values in quotes lose everything after a `#`, such as `color {sign} "#ff0000"`.',
                ("test_a_comment_sign_in_quotes",),
                held_out=True,
            ),
            Mistake(
                "if len(value) >= 2 and value[0] == value[-1]",
                "if value and value[0] == value[-1]",
                'A value that is a single `"` becomes empty. It has no closing quote, so it should stay as it is.',
                ("test_a_single_quote",),
            ),
            Mistake(
                "enumerate(text.splitlines(), 1):",
                "enumerate(text.splitlines()):",
                "The error for a bad line names the line before it.",
                ("test_the_number_of_a_bad_line",),
            ),
        )
    )
    hidden = """
        def test_a_value_with_the_sign(self):
            self.assertEqual(parse("url @sign@ a@sign@b@sign@c"), {"url": "a@sign@b@sign@c"})

        def test_a_comment_sign_in_quotes(self):
            self.assertEqual(parse('color @sign@ "#ff" # red'), {"color": "#ff"})

        def test_a_single_quote(self):
            self.assertEqual(parse('inch @sign@ "'), {"inch": '"'})

        def test_the_number_of_a_bad_line(self):
            with self.assertRaisesRegex(ValueError, "line 3 "):
                parse("a @sign@ 1\\n\\nbad")

        def test_an_empty_value(self):
            self.assertEqual(parse("a @sign@"), {"a": ""})
        """
    shown = """
        def test_lines(self):
            self.assertEqual(parse("Name @sign@ x\\n# nothing\\nother@sign@ y"), {"name": "x", "other": "y"})
        """
    return Draft(
        "parsing",
        package,
        "settings.py",
        {"settings.py": text},
        cases(package, "settings", "parse", shown, sign=sign),
        cases(package, "settings", "parse", hidden, plain=True, sign=sign),
        mistake,
    )
