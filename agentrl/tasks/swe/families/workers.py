"""A queue that threads work on. Mistakes of threads. The tests force the bad order with barriers, so the outcome does not depend on luck."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def workers(random: Random) -> Draft:
    """A queue that threads work on."""
    package, count = package_name(random), random.randint(2, 4)
    text = code(
        '''
        """Threads that work on a queue."""

        import queue
        import threading


        class Workers:
            """Calls ``work(item)`` in @count@ threads."""

            def __init__(self, work, count=@count@):
                self._work = work
                self._queue = queue.Queue()
                self._lock = threading.Lock()
                self.errors = []
                self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
                for thread in self._threads:
                    thread.start()

            def put(self, item):
                """Add an item."""
                self._queue.put((True, item))

            def close(self, timeout=None):
                """Wait until all items are done, and end the threads; return whether all of them ended."""
                for _ in self._threads:
                    self._queue.put((False, None))
                for thread in self._threads:
                    thread.join(timeout)
                return not any(thread.is_alive() for thread in self._threads)

            def _run(self):
                while True:
                    more, item = self._queue.get()
                    if not more:
                        return
                    try:
                        self._work(item)
                    except Exception as error:
                        with self._lock:
                            self.errors.append(error)
        ''',
        count=count,
    )
    mistake = random.choice(
        (
            Mistake(
                "        for _ in self._threads:\n            self._queue.put((False, None))\n",
                "        self._queue.put((False, None))\n",
                "`close` ends one thread only; the others wait for ever.",
                ("test_all_threads_end", "test_work_goes_on_after_errors"),
            ),
            Mistake(
                "            try:\n                self._work(item)\n            except Exception as error:\n"
                "                with self._lock:\n                    self.errors.append(error)\n",
                "            try:\n                self._work(item)\n            except Exception as error:\n"
                "                with self._lock:\n                    self.errors.append(error)\n                return\n",
                "After an item whose work fails, the thread that had it is gone. Once all threads are gone, nothing is done any more.",
                ("test_work_goes_on_after_errors",),
            ),
            Mistake(
                "            if not more:\n",
                "            if not item:\n",
                "An item such as 0 or an empty text ends a thread instead of being worked on.",
                ("test_items_that_are_false", "test_work_goes_on_after_errors"),
                held_out=True,
            ),
        )
    )
    hidden = """
        def setUp(self):
            self.done = []

        def test_all_threads_end(self):
            workers = Workers(self.done.append, 3)
            workers.put(1)
            self.assertEqual((workers.close(3), self.done), (True, [1]))

        def test_work_goes_on_after_errors(self):
            def work(item):
                if item < 3:
                    raise ValueError(item)
                self.done.append(item)

            workers = Workers(work, 2)
            for item in range(6):
                workers.put(item)
            self.assertTrue(workers.close(3))
            self.assertEqual((sorted(self.done), len(workers.errors)), ([3, 4, 5], 3))

        def test_items_that_are_false(self):
            workers = Workers(self.done.append, 1)
            for item in (0, "", None, 5):
                workers.put(item)
            self.assertTrue(workers.close(3))
            self.assertEqual(self.done, [0, "", None, 5])

        def test_nothing_to_do(self):
            self.assertTrue(Workers(self.done.append, 1).close(3))
        """
    shown = """
        def test_items_are_done(self):
            done = []
            workers = Workers(done.append, 1)
            workers.put(3)
            self.assertTrue(workers.close(3))
            self.assertEqual(done, [3])
        """
    return Draft(
        "concurrency",
        package,
        "workers.py",
        {"workers.py": text},
        cases(package, "workers", "Workers", shown),
        cases(package, "workers", "Workers", hidden, plain=True),
        mistake,
    )
