"""Moving windows over a series. Mistakes at the ends: one page, one day or one value too few or too many."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def windows(random: Random) -> Draft:
    """Moving windows over a series."""
    package, word = package_name(random), random.choice(("readings", "prices", "samples", "levels"))
    text = code(
        '''
        """Moving windows over a series."""


        def means(@word@, width):
            """Return the mean of each full window of ``width`` neighbours."""
            if width < 1:
                raise ValueError("a window has at least one value")
            return [sum(@word@[at : at + width]) / width for at in range(len(@word@) - width + 1)]


        def chunks(@word@, width):
            """Return the series in pieces of ``width``; the last one may be shorter."""
            return [@word@[at : at + width] for at in range(0, len(@word@), width)]


        def peaks(@word@):
            """Return the positions whose value is above both neighbours; an end has one neighbour."""
            found = []
            for at, value in enumerate(@word@):
                before = @word@[at - 1] if at > 0 else float("-inf")
                after = @word@[at + 1] if at + 1 < len(@word@) else float("-inf")
                if value > before and value > after:
                    found.append(at)
            return found
        ''',
        word=word,
    )
    mistake = random.choice(
        (
            Mistake(
                f"range(len({word}) - width + 1)",
                f"range(len({word}) - width)",
                "`means` lacks the newest window. `means([1, 2, 3], 3)` is an empty list instead of [2.0].",
                ("test_the_last_window_is_there",),
            ),
            Mistake(
                f"range(0, len({word}), width)",
                f"range(0, len({word}) - width + 1, width)",
                "`chunks` drops the end of the series if it does not fill a piece.",
                ("test_the_last_piece_is_short",),
            ),
            Mistake(
                f"{word}[at - 1] if at > 0 else",
                f"{word}[at - 1] if at >= 0 else",
                "`peaks` misses a peak at position 0 when the series ends high: [5, 1, 9] has peaks at 0 and 2, we get only [2].",
                ("test_a_peak_at_an_end",),
                held_out=True,
            ),
        )
    )
    hidden = """
        def test_the_last_window_is_there(self):
            self.assertEqual(means([1, 2, 3], 3), [2.0])
            self.assertEqual(means([1, 3, 5, 7], 2), [2.0, 4.0, 6.0])

        def test_the_last_piece_is_short(self):
            self.assertEqual(chunks([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]])
            self.assertEqual(chunks([1], 4), [[1]])

        def test_a_peak_at_an_end(self):
            self.assertEqual(peaks([5, 1, 9]), [0, 2])

        def test_too_few_values(self):
            self.assertEqual(means([1], 2), [])
        """
    shown = """
        def test_even_pieces(self):
            self.assertEqual(chunks([1, 2, 3, 4], 2), [[1, 2], [3, 4]])

        def test_a_peak_in_the_middle(self):
            self.assertEqual(peaks([1, 4, 2]), [1])
        """
    return Draft(
        "off_by_one",
        package,
        "windows.py",
        {"windows.py": text},
        cases(package, "windows", "chunks, peaks", shown),
        cases(package, "windows", "chunks, means, peaks", hidden, plain=True),
        mistake,
    )
