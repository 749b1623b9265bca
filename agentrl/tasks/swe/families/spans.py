"""Spans of whole days, both ends included. Mistakes at the ends: one page, one day or one value too few or too many."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def spans(random: Random) -> Draft:
    """Spans of whole days, both ends included."""
    package, word = package_name(random), random.choice(("booking", "shift", "lease", "leave"))
    text = code(
        '''
        """Spans of days: (first, last), both included."""


        def length(span):
            """Return the number of days of a @word@."""
            first, last = span
            if last < first:
                raise ValueError("a @word@ ends before it begins")
            return last - first + 1


        def overlap(one, other):
            """Return the number of days that two spans share."""
            return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)


        def merged(spans):
            """Return the spans in order; those that share or touch a day become one."""
            found = []
            for first, last in sorted(spans):
                if found and first <= found[-1][1] + 1:
                    found[-1] = (found[-1][0], max(found[-1][1], last))
                else:
                    found.append((first, last))
            return found
        ''',
        word=word,
    )
    mistake = random.choice(
        (
            Mistake(
                "return last - first + 1",
                "return last - first",
                f"A {word} of a single day has a length of 0. The last day is included, so (5, 5) is one day.",
                ("test_both_ends_are_included",),
            ),
            Mistake(
                "- max(one[0], other[0]) + 1)",
                "- max(one[0], other[0]))",
                "`overlap((1, 5), (5, 9))` is 0, but both spans have day 5. Longer overlaps lack a day as well.",
                ("test_a_shared_end_is_an_overlap",),
                held_out=True,
            ),
            Mistake(
                "if found and first <= found[-1][1] + 1:",
                "if found and first <= found[-1][1]:",
                "`merged` leaves spans apart that follow each other without a free day: (1, 3) and (4, 6) should become (1, 6).",
                ("test_neighbours_become_one",),
            ),
        )
    )
    hidden = """
        def test_both_ends_are_included(self):
            self.assertEqual([length((5, 5)), length((1, 7)), length((-2, 2))], [1, 7, 5])

        def test_a_shared_end_is_an_overlap(self):
            self.assertEqual([overlap((1, 5), (5, 9)), overlap((1, 9), (3, 4)), overlap((1, 2), (3, 4))], [1, 2, 0])

        def test_neighbours_become_one(self):
            self.assertEqual(merged([(4, 6), (1, 3), (9, 9)]), [(1, 6), (9, 9)])

        def test_a_gap_stays(self):
            self.assertEqual(merged([(1, 3), (5, 6)]), [(1, 3), (5, 6)])
        """
    shown = """
        def test_overlapping_spans_become_one(self):
            self.assertEqual(merged([(1, 5), (2, 3), (4, 8)]), [(1, 8)])

        def test_a_span_that_ends_early(self):
            with self.assertRaises(ValueError):
                length((3, 1))
        """
    return Draft(
        "off_by_one",
        package,
        "spans.py",
        {"spans.py": text},
        cases(package, "spans", "length, merged", shown),
        cases(package, "spans", "length, merged, overlap", hidden, plain=True),
        mistake,
    )
