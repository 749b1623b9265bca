"""Accounts whose transfers happen wholly or not at all. Mistakes of state: what one call leaves behind spoils the next one."""

from __future__ import annotations

from random import Random

from agentrl.tasks.swe.draft import Draft, Mistake, cases, code, package_name


def accounts(random: Random) -> Draft:
    """Accounts whose transfers happen wholly or not at all."""
    package, word = package_name(random), random.choice(("account", "wallet", "purse"))
    text = code(
        '''
        """Accounts with a history."""


        class Refused(Exception):
            """A transfer that is not possible."""


        class @Word@:
            """A @word@ with a balance and a history of amounts."""

            def __init__(self, balance=0, history=None):
                self.balance = balance
                self.history = [] if history is None else list(history)

            def add(self, amount):
                """Add an amount, which may be below zero."""
                if self.balance + amount < 0:
                    raise Refused("there is not enough")
                self.balance += amount
                self.history.append(amount)


        def transfer(source, targets, amount):
            """Move an amount from a @word@ to each of several others; all of it, or nothing."""
            if amount <= 0 or source.balance < amount * len(targets):
                raise Refused("there is not enough")
            for target in targets:
                source.add(-amount)
                target.add(amount)
        ''',
        word=word,
        Word=word.capitalize(),
    )
    mistake = random.choice(
        (
            Mistake(
                "[] if history is None else list(history)",
                "history if history is not None else []",
                f"Two {word}s that were made from the same history share it: a payment of one shows up in the other.",
                ("test_a_given_history_is_copied",),
            ),
            Mistake(
                "source.balance < amount * len(targets):",
                "source.balance < amount:",
                "A transfer to several targets that fails half way leaves the first targets paid. It should move all or nothing.",
                ("test_all_or_nothing",),
                held_out=True,
            ),
            Mistake(
                '        if self.balance + amount < 0:\n            raise Refused("there is not enough")\n'
                "        self.balance += amount\n        self.history.append(amount)\n",
                "        self.history.append(amount)\n        if self.balance + amount < 0:\n"
                '            raise Refused("there is not enough")\n        self.balance += amount\n',
                "A refused payment stands in the history although the balance did not change.",
                ("test_a_refused_amount_leaves_no_trace",),
            ),
        )
    )
    hidden = """
        def test_a_given_history_is_copied(self):
            past = [1]
            one, other = @Word@(1, past), @Word@(1, past)
            one.add(5)
            self.assertEqual((one.history, other.history, past), ([1, 5], [1], [1]))

        def test_all_or_nothing(self):
            source, targets = @Word@(5), [@Word@(), @Word@(), @Word@()]
            with self.assertRaises(Refused):
                transfer(source, targets, 2)
            self.assertEqual([each.balance for each in (source, *targets)], [5, 0, 0, 0])

        def test_a_refused_amount_leaves_no_trace(self):
            one = @Word@(1)
            with self.assertRaises(Refused):
                one.add(-2)
            self.assertEqual((one.balance, one.history), (1, []))

        def test_all_of_it_moves(self):
            source, targets = @Word@(6), [@Word@(), @Word@(1)]
            transfer(source, targets, 3)
            self.assertEqual([each.balance for each in (source, *targets)], [0, 3, 4])
        """
    shown = """
        def test_adding(self):
            one = @Word@()
            one.add(3)
            self.assertEqual((one.balance, one.history), (3, [3]))
        """
    capital = word.capitalize()
    return Draft(
        "state",
        package,
        "accounts.py",
        {"accounts.py": text},
        cases(package, "accounts", capital, shown, Word=capital),
        cases(package, "accounts", f"{capital}, Refused, transfer", hidden, plain=True, Word=capital),
        mistake,
    )
