"""Tasks of one short call each."""

from __future__ import annotations

from random import Random

from agentrl.tasks.toolcall.draft import THINGS, Draft, Expected, call, number


def get_value(rng: Random) -> Draft:
    """Read a value of the store."""
    store = {key: rng.randrange(10, 100) for key in rng.sample(THINGS, 4)}
    key = rng.choice(list(store))
    return Draft(
        f'What is the value of "{key}"?',
        ["store_get"],
        Expected(str(store[key])),
        store={**store},
        calls=[call("store_get", key=key)],
    )


def set_value(rng: Random) -> Draft:
    """Write a value of the store."""
    store = {key: rng.randrange(10, 100) for key in rng.sample(THINGS, 3)}
    key, value = rng.choice(THINGS), rng.randrange(10, 100)
    return Draft(
        f'Set "{key}" to {value}.',
        ["store_set"],
        store={**store},
        final_store={**store, key: value},
        calls=[call("store_set", key=key, value=value)],
    )


def add_two(rng: Random) -> Draft:
    """Add two numbers."""
    first, second = rng.randrange(10, 50), rng.randrange(10, 50)
    return Draft(
        f"What is {first} + {second}?",
        ["calculator"],
        number(first + second),
        calls=[call("calculator", expression=f"{first}+{second}")],
    )
