"""Counts that several threads raise. Mistakes of threads. The tests force the bad order with barriers, so the outcome does not depend on luck."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def tallies(random: Random) -> Draft:
    """Counts that several threads raise."""
    package, word = package_name(random), random.choice(("votes", "visits", "clicks"))
    text = code(
        '''
        """Counts of @word@ that several threads raise."""

        import threading


        class Tally:
            """Keeps counts in a store with ``load(name)`` and ``save(name, count)``."""

            def __init__(self, store):
                self._store = store
                self._lock = threading.Lock()

            def add(self, name, amount=1):
                """Raise a count; return the new one."""
                with self._lock:
                    count = self._store.load(name) + amount
                    self._store.save(name, count)
                return count

            def move(self, source, target, amount):
                """Take from one count and give to another; nobody sees a state in between."""
                with self._lock:
                    if self._store.load(source) < amount:
                        raise ValueError("there is not enough")
                    self._store.save(source, self._store.load(source) - amount)
                    self._store.save(target, self._store.load(target) + amount)

            def total(self, names):
                """Return the sum of counts at one moment."""
                with self._lock:
                    return sum(self._store.load(name) for name in names)
        ''',
        word=word,
    )
    mistake = random.choice(
        (
            Mistake(
                "        with self._lock:\n            count = self._store.load(name) + amount\n"
                "            self._store.save(name, count)\n",
                "        count = self._store.load(name) + amount\n        with self._lock:\n"
                "            self._store.save(name, count)\n",
                f"Some {word} are lost when two threads call `add` at the same time.",
                ("test_two_threads_add",),
            ),
            Mistake(
                "        with self._lock:\n            return sum(self._store.load(name) for name in names)\n",
                "        return sum(self._store.load(name) for name in names)\n",
                "`total` is sometimes too low while another thread runs `move`, although a move does not change the sum.",
                ("test_total_during_a_move",),
                held_out=True,
            ),
            Mistake(
                "        with self._lock:\n            if self._store.load(source) < amount:\n"
                '                raise ValueError("there is not enough")\n',
                "        self._lock.acquire()\n        if self._store.load(source) < amount:\n"
                '            raise ValueError("there is not enough")\n        self._lock.release()\n'
                "        with self._lock:\n",
                "After a `move` that was refused with ValueError, every later call hangs for ever.",
                ("test_a_refused_move_blocks_nobody",),
            ),
        )
    )
    hidden = """
        def at_once(self, *calls):
            threads = [threading.Thread(target=call, daemon=True) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(5)
            self.assertFalse(any(thread.is_alive() for thread in threads), "a call hangs")

        def test_two_threads_add(self):
            store = Store({"a": 0}, meeting="load")
            tally = Tally(store)
            self.at_once(lambda: tally.add("a"), lambda: tally.add("a"))
            self.assertEqual(store.counts, {"a": 2})

        def test_total_during_a_move(self):
            store, seen = Store({"a": 5, "b": 0}), []
            tally = Tally(store)
            reader = threading.Thread(target=lambda: seen.append(tally.total(["a", "b"])), daemon=True)

            def between(name, count):
                if name == "a":
                    reader.start()
                    reader.join(0.5)

            store.after_save = between
            tally.move("a", "b", 3)
            reader.join(5)
            self.assertEqual((seen, store.counts), ([5], {"a": 2, "b": 3}))

        def test_a_refused_move_blocks_nobody(self):
            store = Store({"a": 0, "b": 0})
            tally = Tally(store)
            with self.assertRaises(ValueError):
                tally.move("a", "b", 1)
            self.at_once(lambda: tally.add("a", 4))
            self.assertEqual(store.counts, {"a": 4, "b": 0})

        def test_a_move(self):
            store = Store({"a": 3, "b": 1})
            Tally(store).move("a", "b", 2)
            self.assertEqual(store.counts, {"a": 1, "b": 3})
        """
    store = code(
        """
        import threading


        class Store:
            def __init__(self, counts, meeting=None):
                self.counts = counts
                self.meeting = meeting
                self.barrier = threading.Barrier(2)
                self.after_save = lambda name, count: None

            def load(self, name):
                count = self.counts[name]
                if self.meeting == "load":
                    try:
                        self.barrier.wait(0.5)
                    except threading.BrokenBarrierError:
                        pass
                return count

            def save(self, name, count):
                self.counts[name] = count
                self.after_save(name, count)

        """
    )
    shown = """
        def test_one_thread(self):
            store = Store({"a": 1})
            self.assertEqual((Tally(store).add("a"), Tally(store).total(["a"])), (2, 2))
        """
    return Draft(
        "concurrency",
        package,
        "tallies.py",
        {"tallies.py": text},
        cases(package, "tallies", "Tally", shown, more=store),
        cases(package, "tallies", "Tally", hidden, plain=True, more=store),
        mistake,
    )
