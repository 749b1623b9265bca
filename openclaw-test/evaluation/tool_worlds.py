"""The tools of the suite ``tool-use``: a calculator, a price list, two registers and a store of values.

Guarantees: a tool runs here, is deterministic in its world, and changes nothing but the world. Arguments are checked strictly: an
unknown tool, a missing, further or wrongly typed argument is a `MalformedCall`, whose text tells the model what to write. A call
that makes sense and fails, such as an unknown item, is a result.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentrl.protocol import JsonObject
from agentrl.tasks.shell.environment import openai_tool
from evaluation.tool_turns import MalformedCall

MAX_DIGITS = 40
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Calculator(_Arguments):
    """Work out an expression."""

    expression: Annotated[
        str,
        Field(min_length=1, max_length=200, description="whole numbers, + - * and parentheses, such as 3 * (4 + 5)"),
    ]


class Price(_Arguments):
    """Look up the price of an item."""

    item: Annotated[str, Field(min_length=1, max_length=100, description="name of the item")]


class CustomerNumber(_Arguments):
    """Look up the customer number of a person."""

    name: Annotated[str, Field(min_length=1, max_length=100, description="first name")]


class OrderState(_Arguments):
    """Look up how many parcels a customer is waiting for."""

    customer: Annotated[int, Field(description="customer number")]


class ReadValue(_Arguments):
    """Read a value of the store."""

    name: Annotated[str, Field(min_length=1, max_length=100, description="name of the value")]


class WriteValue(_Arguments):
    """Write a value to the store."""

    name: Annotated[str, Field(min_length=1, max_length=100, description="name of the value")]
    value: Annotated[int, Field(description="the new value")]


Name = Literal["calculator", "price", "customer_number", "waiting_parcels", "read_value", "write_value"]
TOOLS: dict[str, type[_Arguments]] = {
    "calculator": Calculator,
    "price": Price,
    "customer_number": CustomerNumber,
    "waiting_parcels": OrderState,
    "read_value": ReadValue,
    "write_value": WriteValue,
}


@dataclass
class World:
    """What the tools know and change.

    Attributes:
        offered: names of the tools that the model gets.
        prices: by item.
        customers: numbers by first name.
        parcels: by customer number.
        values: of the store.
        busy: how many calls are answered with "busy" first.
        used: names of the tools whose calls made sense, in order.
    """

    offered: Sequence[Name]
    prices: dict[str, int] = field(default_factory=dict[str, int])
    customers: dict[str, int] = field(default_factory=dict[str, int])
    parcels: dict[int, int] = field(default_factory=dict[int, int])
    values: dict[str, int] = field(default_factory=dict[str, int])
    busy: int = 0
    used: list[str] = field(default_factory=list[str])

    def tools(self) -> list[JsonObject]:
        """Return the offered tools in OpenAI's format."""
        return [openai_tool(name, TOOLS[name]) for name in self.offered]

    def call(self, name: str, arguments: JsonValue) -> str:
        """Carry out a call and return what the model reads.

        Raises:
            MalformedCall: it makes no sense; says what to write.
        """
        if name not in self.offered:
            raise MalformedCall(f"there is no tool {name!r}; use one of {', '.join(self.offered)}")
        try:
            given = TOOLS[name].model_validate(arguments)
        except ValidationError as error:
            problems = error.errors(include_input=False)
            said = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in problems
            )
            raise MalformedCall(f"the arguments of {name} are wrong: {said}") from None
        result = calculate(given.expression) if isinstance(given, Calculator) else None
        self.used.append(name)
        if self.busy:
            self.busy -= 1
            return "error: busy, call again"
        match given:
            case Calculator():
                return str(result)
            case Price():
                return _found(self.prices.get(given.item.lower()), f"no item {given.item}")
            case CustomerNumber():
                return _found(self.customers.get(given.name.lower()), f"no customer {given.name}")
            case OrderState():
                return _found(self.parcels.get(given.customer), f"no customer {given.customer}")
            case ReadValue():
                return _found(self.values.get(given.name), f"no value {given.name}")
            case WriteValue():
                self.values[given.name] = given.value
                return "written"
        raise AssertionError(name)


def calculate(expression: str) -> int:
    """Return the value of an expression of whole numbers with ``+``, ``-``, ``*`` and parentheses.

    Raises:
        MalformedCall: it is none, or a number in it is too large.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MalformedCall(
            f"{expression!r} is not an expression of whole numbers with + - * and parentheses"
        ) from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError("another kind of expression")
    if abs(value) >= 10**MAX_DIGITS:
        raise MalformedCall(f"a number in the expression has more than {MAX_DIGITS} digits")
    return value


def _found(value: Any, otherwise: str) -> str:
    return f"error: {otherwise}" if value is None else str(value)
