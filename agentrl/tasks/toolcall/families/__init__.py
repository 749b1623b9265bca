"""The families of tool tasks, by name.

* ``easy``: one short call each; a tiny model can learn these.
* ``arithmetic``: chains of a calculator, word problems, number theory by programs.
* ``lookup``: tables, in one to three calls, and SQL.
* ``state``: what counts is the state in the end.
"""

from __future__ import annotations

from types import MappingProxyType

from agentrl.tasks.toolcall.draft import Family
from agentrl.tasks.toolcall.families import arithmetic, easy, lookup, state

FAMILIES: MappingProxyType[str, Family] = MappingProxyType(
    {
        family.__name__: family
        for family in (
            *(easy.get_value, easy.set_value, easy.add_two),
            *(arithmetic.chain, arithmetic.shopping, arithmetic.journey, arithmetic.mixture),
            *(arithmetic.count_primes, arithmetic.power_mod, arithmetic.digit_sum, arithmetic.common_divisor),
            *(lookup.price_of, lookup.home_population, lookup.order_total, lookup.sales_of),
            *(state.rename_key, state.swap_values, state.transfer, state.close_accounts, state.record_price),
        )
    }
)
"""Every family, in the order of the page."""
EASY = ("get_value", "set_value", "add_two")
HELD_OUT = ("mixture", "record_price")
"""Families that are never trained on: they have tasks of the split ``heldout`` only."""
