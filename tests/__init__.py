"""The tests. ``TESTS_ROUNDING=other`` rounds as another processor might, here and in the processes that tests start."""

import os

if os.environ.get("TESTS_ROUNDING") == "other":
    from tests.helpers.other_rounding import OtherRounding

    OtherRounding().__enter__()
