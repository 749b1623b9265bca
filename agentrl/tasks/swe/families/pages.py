"""Pages of a list. Mistakes at the ends: one page, one day or one value too few or too many."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def pages(random: Random) -> Draft:
    """Pages of a list."""
    package, size = package_name(random), random.randint(3, 9)
    noun = random.choice(("items", "rows", "posts", "cards"))
    text = code(
        '''
        """Pages of a list."""


        class Pages:
            """@noun@ in pages of a fixed size; the first page has number 1."""

            def __init__(self, @noun@, size=@size@):
                if size < 1:
                    raise ValueError("a page has at least one entry")
                self.@noun@ = list(@noun@)
                self.size = size

            def count(self):
                """Return the number of pages."""
                return (len(self.@noun@) + self.size - 1) // self.size

            def page(self, number):
                """Return the entries of a page."""
                if not 1 <= number <= max(1, self.count()):
                    raise IndexError(f"there is no page {number}")
                start = (number - 1) * self.size
                return self.@noun@[start : start + self.size]

            def has_next(self, number):
                """Return whether another page follows."""
                return number < self.count()
        ''',
        noun=noun,
        size=size,
    )
    mistake = random.choice(
        (
            Mistake(
                f"return (len(self.{noun}) + self.size - 1) // self.size",
                f"return len(self.{noun}) // self.size",
                f"The last page is not counted when it is not full. With {size + 1} {noun} and a size of {size}, `count()` says 1, and "
                "asking for page 2 raises IndexError.",
                ("test_a_part_of_a_page_counts", "test_every_entry_is_on_a_page", "test_the_last_page_has_no_next"),
            ),
            Mistake(
                "start = (number - 1) * self.size",
                "start = (number - 1) * self.size + (number > 1)",
                "Pages after the first lose an entry: the first entry of page 2 is missing, and so it is with all later pages.",
                ("test_every_entry_is_on_a_page",),
            ),
            Mistake(
                "return number < self.count()",
                "return number <= self.count()",
                "`has_next` is true for the last page too, so our reader asks for a page that does not exist.",
                ("test_the_last_page_has_no_next",),
                held_out=True,
            ),
        )
    )
    hidden = """
        def test_a_part_of_a_page_counts(self):
            self.assertEqual([Pages(range(n), 3).count() for n in (0, 1, 3, 4, 6, 7)], [0, 1, 1, 2, 2, 3])

        def test_every_entry_is_on_a_page(self):
            pages = Pages(range(11), 4)
            seen = [each for number in range(1, pages.count() + 1) for each in pages.page(number)]
            self.assertEqual(seen, list(range(11)))

        def test_the_last_page_has_no_next(self):
            pages = Pages(range(7), 3)
            self.assertEqual([pages.has_next(n) for n in (1, 2, 3)], [True, True, False])

        def test_a_page_that_is_not_there(self):
            with self.assertRaises(IndexError):
                Pages(range(7), 3).page(4)
        """
    shown = """
        def test_first_page(self):
            self.assertEqual(Pages(range(12), 4).page(1), [0, 1, 2, 3])

        def test_a_size_of_zero_is_refused(self):
            with self.assertRaises(ValueError):
                Pages([1], 0)
        """
    return Draft(
        "off_by_one",
        package,
        "pages.py",
        {"pages.py": text},
        cases(package, "pages", "Pages", shown),
        cases(package, "pages", "Pages", hidden, plain=True),
        mistake,
    )
