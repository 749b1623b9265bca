"""Values that are made once, when they are needed first. Mistakes of threads. The tests force the bad order with barriers, so the outcome does not depend on luck."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name

THREADS = "import threading\n"


def once(random: Random) -> Draft:
    """Values that are made once, when they are needed first."""
    package, word = package_name(random), random.choice(("connection", "client", "engine"))
    text = code(
        '''
        """A @word@ that is made when it is needed first."""

        import threading


        class Once:
            """Makes a value with ``make()``; a failure is not kept."""

            def __init__(self, make):
                self._make = make
                self._lock = threading.Lock()
                self._made = False
                self._value = None

            def get(self):
                """Return the value; all threads get the same one."""
                with self._lock:
                    if not self._made:
                        self._value = self._make()
                        self._made = True
                    return self._value

            def reset(self):
                """Forget the value, so that the next `get` makes another one."""
                with self._lock:
                    self._made = False
                    self._value = None
        ''',
        word=word,
    )
    whole = (
        "        with self._lock:\n            if not self._made:\n                self._value = self._make()\n"
        "                self._made = True\n            return self._value\n"
    )
    mistake = random.choice(
        (
            Mistake(
                whole,
                "        if not self._made:\n            self._value = self._make()\n            with self._lock:\n"
                "                self._made = True\n        return self._value\n",
                f"Under load two {word}s are opened at the start, and one of them is never closed.",
                ("test_two_threads_at_the_start",),
            ),
            Mistake(
                "                self._value = self._make()\n                self._made = True\n",
                "                self._made = True\n                self._value = self._make()\n",
                f"If making the {word} fails once, `get` returns None from then on instead of trying again.",
                ("test_a_failure_is_not_kept",),
                held_out=True,
            ),
            Mistake(
                "        with self._lock:\n            self._made = False\n            self._value = None\n",
                "        with self._lock:\n            self._value = None\n",
                "After `reset()`, `get` returns None.",
                ("test_another_value_after_a_reset",),
            ),
        )
    )
    hidden = """
        def test_two_threads_at_the_start(self):
            barrier, made, seen = threading.Barrier(2), [], []

            def make():
                try:
                    barrier.wait(0.5)
                except threading.BrokenBarrierError:
                    pass
                made.append(len(made) + 10)
                return made[-1]

            once = Once(make)
            threads = [threading.Thread(target=lambda: seen.append(once.get()), daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(5)
            self.assertEqual((len(made), seen), (1, made * 2))

        def test_a_failure_is_not_kept(self):
            answers = [ValueError("not yet"), 7]

            def make():
                answer = answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            once = Once(make)
            with self.assertRaises(ValueError):
                once.get()
            self.assertEqual((once.get(), once.get()), (7, 7))

        def test_another_value_after_a_reset(self):
            values = iter([1, 2])
            once = Once(lambda: next(values))
            first = once.get()
            once.reset()
            self.assertEqual((first, once.get()), (1, 2))

        def test_a_value_that_is_none(self):
            calls = []
            once = Once(lambda: calls.append(1))
            self.assertEqual((once.get(), once.get(), calls), (None, None, [1]))
        """
    shown = """
        def test_the_same_value(self):
            once = Once(object)
            self.assertIs(once.get(), once.get())
        """
    return Draft(
        "concurrency",
        package,
        "once.py",
        {"once.py": text},
        cases(package, "once", "Once", shown),
        cases(package, "once", "Once", hidden, plain=True, more=THREADS),
        mistake,
    )
