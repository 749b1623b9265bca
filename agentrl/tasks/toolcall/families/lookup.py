"""Tasks about tables."""

from __future__ import annotations

from random import Random

from agentrl.tasks.toolcall.draft import NAMES, PLACES, THINGS, Draft, Expected, call, number


def price_of(rng: Random) -> Draft:
    """Look one thing up."""
    prices = {thing: rng.randrange(10, 100) for thing in rng.sample(THINGS, 8)}
    thing = rng.choice(list(prices))
    return Draft(
        f'The table prices has the columns item and price. What is the price of the item "{thing}"?',
        ["table_lookup"],
        number(prices[thing]),
        tables={"prices": [{"item": item, "price": price} for item, price in prices.items()]},
        calls=[call("table_lookup", table="prices", column="item", value=thing)],
    )


def home_population(rng: Random) -> Draft:
    """Look a person's town up, and something of the town."""
    people = {name: rng.choice(PLACES) for name in rng.sample(NAMES, 8)}
    towns = {town: rng.randrange(1000, 900_000) for town in PLACES}
    name = rng.choice(list(people))
    return Draft(
        "The table people has the columns name and town, the table towns has the columns town and population. How many "
        f"people live in the town of {name}?",
        ["table_lookup"],
        number(towns[people[name]]),
        tables={
            "people": [{"name": each, "town": town} for each, town in people.items()],
            "towns": [{"town": town, "population": count} for town, count in towns.items()],
        },
        calls=[
            call("table_lookup", table="people", column="name", value=name),
            call("table_lookup", table="towns", column="town", value=people[name]),
        ],
    )


def order_total(rng: Random) -> Draft:
    """Look an order and its price up, and multiply."""
    prices = {thing: rng.randrange(10, 500) for thing in rng.sample(THINGS, 6)}
    orders = [
        {"order": n, "item": rng.choice(list(prices)), "count": rng.randrange(2, 60)}
        for n in rng.sample(range(100, 1000), 8)
    ]
    chosen = rng.choice(orders)
    price = prices[str(chosen["item"])]
    return Draft(
        "The table orders has the columns order, item and count, the table prices has the columns item and price. What "
        f"does the order {chosen['order']} cost?",
        ["table_lookup", "calculator"],
        number(int(chosen["count"]) * price),
        tables={"orders": orders, "prices": [{"item": item, "price": each} for item, each in prices.items()]},
        calls=[
            call("table_lookup", table="orders", column="order", value=chosen["order"]),
            call("table_lookup", table="prices", column="item", value=chosen["item"]),
            call("calculator", expression=f"{chosen['count']} * {price}"),
        ],
    )


def sales_of(rng: Random) -> Draft:
    """Add up and compare by SQL."""
    sellers = rng.sample(NAMES, 4)
    sales = [{"seller": rng.choice(sellers), "amount": rng.randrange(1, 10_000)} for _ in range(40)]
    totals = {each: sum(int(sale["amount"]) for sale in sales if sale["seller"] == each) for each in sellers}
    best = max(totals, key=lambda each: (totals[each], each))
    return Draft(
        "The table sales has the columns seller and amount. Which seller has the largest sum of amounts? Answer with the "
        "name.",
        ["sql"],
        Expected(best),
        tables={"sales": sales},
        calls=[
            call(
                "sql",
                statement="SELECT seller, SUM(amount) AS total FROM sales GROUP BY seller "
                "ORDER BY total DESC, seller DESC LIMIT 1",
            )
        ],
    )
