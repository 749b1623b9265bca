"""Listeners of events. Mistakes of state: what one call leaves behind spoils the next one."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def events(random: Random) -> Draft:
    """Listeners of events."""
    package, verb = package_name(random), random.choice(("subscribe", "listen", "attach"))
    text = code(
        '''
        """Events and who listens to them."""


        class Events:
            """Calls the listeners of an event in the order of their registration."""

            def __init__(self):
                self._listeners = {}

            def @verb@(self, name, listener):
                """Add a listener; return a function that takes it away."""
                self._listeners.setdefault(name, []).append(listener)

                def cancel():
                    if listener in self._listeners[name]:
                        self._listeners[name].remove(listener)

                return cancel

            def emit(self, name, *values):
                """Call the listeners that there are now; return how many."""
                now = list(self._listeners.get(name, ()))
                for listener in now:
                    listener(*values)
                return len(now)
        ''',
        verb=verb,
    )
    mistake = random.choice(
        (
            Mistake(
                "now = list(self._listeners.get(name, ()))",
                "now = self._listeners.get(name, ())",
                "If a listener takes itself away while it is called, the next listener is skipped.",
                ("test_a_listener_that_leaves",),
            ),
            Mistake(
                "    def __init__(self):\n        self._listeners = {}\n",
                "    _listeners = {}\n",
                "Two `Events` objects call each other's listeners.",
                ("test_two_objects",),
                held_out=True,
            ),
            Mistake(
                "            if listener in self._listeners[name]:\n                self._listeners[name].remove(listener)\n",
                "            self._listeners.pop(name)\n",
                "Cancelling one listener silences all other listeners of the same event.",
                ("test_the_others_stay", "test_a_listener_that_leaves"),
            ),
        )
    )
    hidden = """
        def test_a_listener_that_leaves(self):
            events, seen = Events(), []
            cancel = events.@verb@("x", lambda value: (seen.append(1), cancel()))
            events.@verb@("x", lambda value: seen.append(2))
            self.assertEqual((events.emit("x", 0), list(seen), events.emit("x", 0)), (2, [1, 2], 1))

        def test_two_objects(self):
            one, other = Events(), Events()
            one.@verb@("y", lambda: None)
            self.assertEqual((one.emit("y"), other.emit("y")), (1, 0))

        def test_the_others_stay(self):
            events = Events()
            cancel = events.@verb@("z", lambda: None)
            events.@verb@("z", lambda: 1)
            cancel()
            self.assertEqual(events.emit("z"), 1)

        def test_nobody_listens(self):
            self.assertEqual(Events().emit("nothing"), 0)
        """
    shown = """
        def test_a_listener_is_called(self):
            events, seen = Events(), []
            events.@verb@("shown", seen.append)
            events.emit("shown", 4)
            self.assertEqual(seen, [4])
        """
    return Draft(
        "state",
        package,
        "events.py",
        {"events.py": text},
        cases(package, "events", "Events", shown, verb=verb),
        cases(package, "events", "Events", hidden, plain=True, verb=verb),
        mistake,
    )
