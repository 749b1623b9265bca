"""A bounded cache that forgets what was not used for longest. Mistakes of state: what one call leaves behind spoils the next one."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def caches(random: Random) -> Draft:
    """A bounded cache that forgets what was not used for longest."""
    package, size = package_name(random), random.randint(2, 6)
    text = code(
        '''
        """A cache that forgets what was not used for longest."""

        from collections import OrderedDict


        class Cache:
            """Keeps at most ``size`` values."""

            def __init__(self, size=@size@):
                self.size = size
                self.hits = 0
                self._kept = OrderedDict()

            def get(self, key, default=None):
                """Return a value; that counts as a use."""
                if key not in self._kept:
                    return default
                self.hits += 1
                self._kept.move_to_end(key)
                return self._kept[key]

            def put(self, key, value):
                """Keep a value, as the newest."""
                self._kept[key] = value
                self._kept.move_to_end(key)
                while len(self._kept) > self.size:
                    self._kept.popitem(last=False)

            def clear(self):
                """Forget everything, the count of hits too."""
                self._kept.clear()
                self.hits = 0

            def __len__(self):
                return len(self._kept)
        ''',
        size=size,
    )
    mistake = random.choice(
        (
            Mistake(
                "        self.hits += 1\n        self._kept.move_to_end(key)\n",
                "        self.hits += 1\n",
                "The cache forgets values that we read all the time. Reading should count as a use, but only the order of `put` matters.",
                ("test_reading_is_a_use",),
            ),
            Mistake(
                "        self._kept[key] = value\n        self._kept.move_to_end(key)\n",
                "        self._kept[key] = value\n",
                "A value that is put again keeps its old age, and so it is forgotten first although it is the newest.",
                ("test_putting_again_is_a_use",),
            ),
            Mistake(
                "        self._kept.clear()\n        self.hits = 0\n",
                "        self._kept.clear()\n",
                "After `clear()` the number of hits goes on from the old one; it should begin at 0 again.",
                ("test_clear_forgets_the_hits",),
                held_out=True,
            ),
        )
    )
    hidden = """
        def test_reading_is_a_use(self):
            cache = Cache(2)
            cache.put("a", 1)
            cache.put("b", 2)
            cache.get("a")
            cache.put("c", 3)
            self.assertEqual([cache.get(key) for key in "abc"], [1, None, 3])

        def test_putting_again_is_a_use(self):
            cache = Cache(2)
            for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
                cache.put(key, value)
            self.assertEqual([cache.get(key) for key in "abc"], [3, None, 4])

        def test_clear_forgets_the_hits(self):
            cache = Cache(2)
            cache.put("a", 1)
            cache.get("a")
            cache.clear()
            self.assertEqual((len(cache), cache.hits), (0, 0))

        def test_the_size_holds(self):
            cache = Cache(3)
            for key in range(9):
                cache.put(key, key)
            self.assertEqual(len(cache), 3)
        """
    shown = """
        def test_a_value_comes_back(self):
            cache = Cache()
            cache.put("a", 1)
            self.assertEqual((cache.get("a"), cache.get("b", 7), cache.hits), (1, 7, 1))
        """
    return Draft(
        "state",
        package,
        "caches.py",
        {"caches.py": text},
        cases(package, "caches", "Cache", shown),
        cases(package, "caches", "Cache", hidden, plain=True),
        mistake,
    )
