"""Arithmetic of an expression, without running it.

Guarantees: numbers, + - * / // % **, signs, parentheses and a few functions only. Whole numbers and fractions are exact. The
size of expression and numbers is bounded, so no call takes long.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from agentrl.exceptions import InvalidError

MOST_CHARACTERS = 500
MOST_BITS = 4096
"""Of a number."""
MOST_DIGITS = 100
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


def calculate(expression: str) -> str:
    """Return the value of an expression: a whole number, or a decimal one with 12 digits.

    Raises:
        InvalidError: it is none, it divides by zero, or it is too large.
    """
    if len(expression) > MOST_CHARACTERS:
        raise _wrong(f"the expression has more than {MOST_CHARACTERS} characters")
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
        if size * abs(exponent.numerator) > MOST_BITS:
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
    if abs(digits) > MOST_DIGITS:
        raise OverflowError
    return Fraction(round(Fraction(value), int(digits)))


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction) and value.numerator.bit_length() + value.denominator.bit_length() > 2 * MOST_BITS:
        raise OverflowError
    return value


def _wrong(problem: str) -> InvalidError:
    return InvalidError(f"{problem}; {HOW}", code="bad_expression")
