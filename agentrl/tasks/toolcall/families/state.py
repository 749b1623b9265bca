"""Tasks that are judged by the state in the end."""

from __future__ import annotations

from random import Random

from agentrl.tasks.toolcall.draft import NAMES, THINGS, Draft, call


def rename_key(rng: Random) -> Draft:
    """Give a value another key."""
    *keys, new = rng.sample(THINGS, 5)
    store = {key: rng.randrange(100, 1000) for key in keys}
    old = rng.choice(keys)
    return Draft(
        f"Rename the key {old} of the store to {new}. Keep its value.",
        ["store_get", "store_set", "store_delete"],
        store={**store},
        final_store={new if key == old else key: value for key, value in store.items()},
        calls=[
            call("store_get", key=old),
            call("store_set", key=new, value=store[old]),
            call("store_delete", key=old),
        ],
    )


def swap_values(rng: Random) -> Draft:
    """Swap two values."""
    store = dict(zip(rng.sample(THINGS, 5), rng.sample(range(100, 1000), 5), strict=True))
    one, other = rng.sample(list(store), 2)
    return Draft(
        f"Swap the values of {one} and {other} in the store.",
        ["store_get", "store_set"],
        store={**store},
        final_store={**store, one: store[other], other: store[one]},
        calls=[
            call("store_get", key=one),
            call("store_get", key=other),
            call("store_set", key=one, value=store[other]),
            call("store_set", key=other, value=store[one]),
        ],
    )


def transfer(rng: Random) -> Draft:
    """Move an amount between two accounts."""
    store = {name: rng.randrange(500, 5000) for name in rng.sample(NAMES, 5)}
    giver, taker = rng.sample(list(store), 2)
    amount = rng.randrange(10, store[giver])
    after = {giver: store[giver] - amount, taker: store[taker] + amount}
    return Draft(
        f"The store has the balance of each person. Move {amount} from {giver} to {taker}.",
        ["store_get", "store_set", "calculator"],
        store={**store},
        final_store={**store, **after},
        calls=[
            call("store_get", key=giver),
            call("store_get", key=taker),
            call("calculator", expression=f"{store[giver]} - {amount}"),
            call("calculator", expression=f"{store[taker]} + {amount}"),
            *(call("store_set", key=name, value=value) for name, value in after.items()),
        ],
    )


def close_accounts(rng: Random) -> Draft:
    """Delete and change rows by SQL."""
    limit, fee = rng.randrange(50, 200), rng.randrange(1, 20)
    accounts = [{"name": name, "balance": rng.randrange(0, 500)} for name in rng.sample(NAMES, 12)]
    kept = [{**row, "balance": int(row["balance"]) - fee} for row in accounts if int(row["balance"]) >= limit]
    return Draft(
        f"The table accounts has the columns name and balance. Delete all accounts with a balance below {limit}, then take "
        f"a fee of {fee} from each other account.",
        ["sql"],
        tables={"accounts": accounts},
        final_tables={"accounts": kept},
        calls=[
            call("sql", statement=f"DELETE FROM accounts WHERE balance < {limit}"),
            call("sql", statement=f"UPDATE accounts SET balance = balance - {fee}"),
        ],
    )


def record_price(rng: Random) -> Draft:
    """Look a price up and store it; held out."""
    prices = {thing: rng.randrange(100, 10_000) for thing in rng.sample(THINGS, 8)}
    thing = rng.choice(list(prices))
    store = {key: rng.randrange(100, 1000) for key in rng.sample(THINGS, 3) if key != thing}
    return Draft(
        f"The table prices has the columns item and price. Set the key {thing} of the store to the price of that item.",
        ["table_lookup", "store_set"],
        store={**store},
        tables={"prices": [{"item": item, "price": price} for item, price in prices.items()]},
        final_store={**store, thing: prices[thing]},
        calls=[
            call("table_lookup", table="prices", column="item", value=thing),
            call("store_set", key=thing, value=prices[thing]),
        ],
    )
