"""The tools that compute in this process: calculator, store and tables. They run nothing of the agent's.

The calculator: numbers, + - * / // % **, signs, parentheses and a few functions only. Whole numbers and fractions are exact. The
size of expression and numbers is bounded, so no call takes long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, cast

from pydantic import JsonValue

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.tools.interface import World, parameters, shown

MAX_CHARACTERS = 500
MAX_BITS = 4096
"""Of a number."""
MAX_DIGITS = 100
"""To round to."""
Number = Fraction | float
Function = Callable[..., Any]
BINARY: Mapping[type[ast.operator], Function] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {"abs": abs, "min": min, "max": max, "sqrt": lambda x: _root(x), "round": lambda x, n=Fraction(0): _rounded(x, n)}
)
HOW = f"write numbers, + - * / // % ** ( ) and {', '.join(FUNCTIONS)}"
MAX_KEYS = 1000
MAX_VALUE = 1000
"""Characters of a key, and of a value."""
MAX_ROWS = 20
"""Rows that a look-up shows."""
_VALUE: JsonObject = {"type": ["string", "number"], "description": "the value"}
_KEY: JsonObject = {"type": "string", "description": "the key"}


def calculate(expression: str) -> str:
    """Return the value of an expression: a whole number, or a decimal one with 12 digits.

    Raises:
        InvalidError: it is none, it divides by zero, or it is too large.
    """
    if len(expression) > MAX_CHARACTERS:
        raise _wrong(f"the expression has more than {MAX_CHARACTERS} characters")
    try:
        value = _value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body)
        whole = isinstance(value, Fraction) and value.denominator == 1
        return str(value.numerator) if whole and isinstance(value, Fraction) else f"{float(value):.12g}"
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError) as error:
        raise _wrong(f"this is not an expression: {error}") from None
    except ZeroDivisionError:
        raise _wrong("this divides by zero") from None
    except OverflowError:
        raise _wrong("a number is too large") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(Fraction(ast.unparse(node)))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in BINARY:
            return _bounded(BINARY[type(sign)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=values, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*map(_value, values))
        case _:
            raise ValueError(f"it holds {ast.unparse(node)[:50]!r}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and isinstance(base, Fraction):
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent.numerator) > MAX_BITS:
            raise OverflowError
        return base**exponent.numerator
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ValueError("the root of a negative number")
    return result


def _root(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0 and value.denominator == 1:
        root = math.isqrt(value.numerator)
        if root * root == value:
            return Fraction(root)
    return math.sqrt(value)


def _rounded(value: Number, digits: Number) -> Number:
    if abs(digits) > MAX_DIGITS:
        raise OverflowError
    return Fraction(round(Fraction(value), int(digits)))


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction) and value.numerator.bit_length() + value.denominator.bit_length() > 2 * MAX_BITS:
        raise OverflowError
    return value


def _wrong(problem: str) -> InvalidError:
    return InvalidError(f"{problem}; {HOW}", code="bad_expression")


@dataclass(frozen=True)
class Pure:
    """A tool that is a function of its arguments and the world."""

    name: str
    description: str
    parameters: JsonObject
    function: Callable[[JsonObject, World], str]
    room: None = None

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        return self.function(arguments, world)


def _calculator(arguments: JsonObject, world: World) -> str:
    return calculate(str(arguments["expression"]))


def _get(arguments: JsonObject, world: World) -> str:
    return shown(world.store[_known(arguments, world)])


def _set(arguments: JsonObject, world: World) -> str:
    key, value = str(arguments["key"]), cast(JsonValue, arguments["value"])
    if len(key) > MAX_VALUE or len(shown(value)) > MAX_VALUE:
        raise InvalidError(f"a key and a value have at most {MAX_VALUE} characters", code="too_large")
    if key not in world.store and len(world.store) >= MAX_KEYS:
        raise InvalidError(f"the store holds at most {MAX_KEYS} keys", code="too_large")
    world.store[key] = value
    return "ok"


def _delete(arguments: JsonObject, world: World) -> str:
    del world.store[_known(arguments, world)]
    return "ok"


def _keys(arguments: JsonObject, world: World) -> str:
    return shown([*sorted(world.store)])


def _lookup(arguments: JsonObject, world: World) -> str:
    rows = world.tables.get(str(arguments["table"]))
    if rows is None:
        raise InvalidError(f"there is no such table; there are {', '.join(world.tables) or 'none'}", code="no_table")
    column, value = str(arguments["column"]), shown(arguments["value"])
    if rows and column not in rows[0]:
        raise InvalidError(f"there is no such column; there are {', '.join(rows[0])}", code="no_column")
    found: list[JsonValue] = [{**row} for row in rows if shown(row[column]) == value]
    return shown(found[:MAX_ROWS]) if found else "no row"


def _known(arguments: JsonObject, world: World) -> str:
    key = str(arguments["key"])
    if key not in world.store:
        raise InvalidError(f"there is no key {key!r}", code="no_key")
    return key


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*properties], "additionalProperties": False}


PURE: Mapping[str, Pure] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            Pure(
                "calculator",
                "Compute an expression.",
                parameters({"expression": ("string", "such as 2 * (3 + 4)")}),
                _calculator,
            ),
            Pure("store_get", "Read a key of the store.", _object(key=_KEY), _get),
            Pure("store_set", "Set a key of the store.", _object(key=_KEY, value=_VALUE), _set),
            Pure("store_delete", "Delete a key of the store.", _object(key=_KEY), _delete),
            Pure("store_keys", "List the keys of the store.", _object(), _keys),
            Pure(
                "table_lookup",
                "Find the rows of a table with a value in a column.",
                _object(
                    table={"type": "string", "description": "the table"},
                    column={"type": "string", "description": "the column"},
                    value={"type": ["string", "number"], "description": "the value to find"},
                ),
                _lookup,
            ),
        )
    }
)
