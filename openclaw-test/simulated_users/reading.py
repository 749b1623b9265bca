"""Read a user from a YAML file, and say at which line a file is wrong and what to write there.

Guarantees: an unknown, doubled or missing key, a value of another type, a broken pattern and a function that does not exist are
errors; nothing is converted in silence. All errors of a file are reported at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from simulated_users.rules import FOLDER, Rule
from simulated_users.user import User

BUILT_IN = Path(__file__).resolve().parent / "built_in"
EXAMPLES = {
    "name": "name: captain",
    "wish": 'wish: the reply calls the user "captain"',
    "rule": "rule: {contains_any: [captain]}",
    "rule.must_match": r"must_match: ['\d+']",
    "rule.must_not_match": r"must_not_match: ['\*\*', '^#']",
    "rule.contains_any": "contains_any: [well done, excellent]",
    "rule.min_words": "min_words: 10",
    "rule.max_words": "max_words: 40",
    "rule.min_tokens": "min_tokens: 100",
    "rule.max_tokens": "max_tokens: 100",
    "rule.call": "call: my_rules.py:is_polite",
    "opening": "opening: 'Please help me: {question}'",
    "complaints": "complaints: [You forgot my title., Again with my title please.]",
    "thanks": "thanks: [Thanks., Good.]",
    "hints": "hints: [Call me captain.]",
    "turns": "turns: 3",
    "seeds": "seeds: [0, 1, 2]",
    "temperature": "temperature: 0.6",
    "max_tokens": "max_tokens: 160",
    "role": "role: You are a ship's captain who expects to be called so.",
}
"""What to write, by the path of the key."""
MAX_COLLECTIONS = 1000
MAX_DEPTH = 20
MESSAGES = {
    "tuple_type": "is not a list",
    "string_type": "is not a text; put it in quotes if it is meant as one",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "model_type": "is not a mapping of keys to values",
    "model_attributes_type": "is not a mapping of keys to values",
}


class UserFileError(ValueError):
    """A file does not describe a user; each line of the message says where, what is wrong, and what to write."""


def built_in_names() -> list[str]:
    """Return the names of the built-in users."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def find_user(name: str) -> User:
    """Return the built-in user of that name, or the user of that YAML file.

    Raises:
        UserFileError: there is no such user or file, or the file is wrong.
    """
    if name in built_in_names():
        return read_user(BUILT_IN / f"{name}.yaml")
    if not name.endswith((".yaml", ".yml")):
        near = difflib.get_close_matches(name, built_in_names(), n=1)
        advice = (
            f"did you mean {near[0]}?" if near else f"known: {', '.join(built_in_names())}; or name a file: me.yaml"
        )
        raise UserFileError(f"there is no user {name}; {advice}")
    return read_user(Path(name))


def find_users(names: Sequence[str]) -> list[User]:
    """Return the users of these names and files.

    Raises:
        UserFileError: as `find_user`, or two users have one name.
    """
    users = [find_user(name) for name in names]
    results = [user.name for user in users]
    if doubled := [name for name in results if results.count(name) > 1]:
        raise UserFileError(f"two users have the name {doubled[0]}; give each file a name of its own")
    return users


def read_user(path: Path) -> User:
    """Return the user of a YAML file.

    Raises:
        UserFileError: the file is missing or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        _check_tree(node)
        values = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise UserFileError(f"{path}: is not text in UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise UserFileError(f"{path}: {error.strerror}; name an existing file, or one of {built_in_names()}") from error
    except RecursionError:
        raise UserFileError(f"{path}: nests too deep; a user has three levels") from None
    except UserFileError as error:
        raise UserFileError(f"{path}:{error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise UserFileError(f"{place}: is not YAML: {problem}") from error
    except ValueError as error:  # of a date or a number
        raise UserFileError(f"{path}: {error}; put the text in quotes") from error
    if not isinstance(node, yaml.MappingNode):
        raise UserFileError(f"{path}:1: is not a mapping of keys to values; begin with {EXAMPLES['name']}")
    if doubled := list(_doubled(node)):
        raise UserFileError("\n".join(f"{path}:{line}: {key} is there twice; leave one" for key, line in doubled))
    try:
        return User.model_validate(values, context={FOLDER: path.resolve().parent})
    except ValidationError as error:
        results = [(_line(node, item["loc"]), _told(item)) for item in error.errors()]
        raise UserFileError("\n".join(f"{path}:{line}: {told}" for line, told in sorted(set(results)))) from error


def _told(error: Any) -> str:
    """Return what is wrong and what to write."""
    parts = [part for part in error["loc"] if isinstance(part, str) and part in _known_parts()]
    path = ".".join(parts)
    shown = path or "the user"
    if error["type"] == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), ".".join(str(part) for part in error["loc"][:-1]))
    if error["type"] == "missing":
        return f"{shown} is missing; write {EXAMPLES[path]}"
    message = MESSAGES.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    value = error["input"]
    said = f"{value!r} {message}" if error["type"] in MESSAGES else message
    if error["type"].startswith(("greater_than", "less_than", "too_short", "string_too_short")):
        said = f"{value!r}: {message}"
    advice = EXAMPLES.get(path)
    return f"{shown}: {said}" + (f"; write for example {advice}" if advice else "")


def _known_parts() -> set[str]:
    return {*User.model_fields, *Rule.model_fields}


def _unknown(key: str, parent: str) -> str:
    known = Rule.model_fields if parent == "rule" else User.model_fields
    near = difflib.get_close_matches(key, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    return f"{f'{parent}.' if parent else ''}{key} is not a known key; {advice}"


def _line(node: yaml.Node, location: tuple[int | str, ...]) -> int:
    """Return the line, from 1, of the innermost part of ``location`` that the file has."""
    line = node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _check_tree(node: yaml.Node | None) -> None:
    """Refuse a file whose aliases make a circle, or stand for more than a user has.

    Raises:
        UserFileError: with the line.
    """
    seen = 0
    todo: list[tuple[yaml.Node | None, tuple[int, ...]]] = [(node, ())]
    while todo:
        item, above = todo.pop()
        if not isinstance(item, yaml.CollectionNode):
            continue
        line = item.start_mark.line + 1
        if id(item) in above:
            raise UserFileError(f"{line}: the value refers to itself; write it out without *")
        seen += 1
        if seen > MAX_COLLECTIONS or len(above) > MAX_DEPTH:
            raise UserFileError(
                f"{line}: more than {MAX_COLLECTIONS} lists or {MAX_DEPTH} levels; write a smaller file"
            )
        inner = [part for pair in item.value for part in pair] if isinstance(item, yaml.MappingNode) else item.value
        todo += [(part, (*above, id(item))) for part in inner]


def _doubled(node: yaml.Node) -> list[tuple[str, int]]:
    """Return each key that stands twice in its mapping, with the line of the second one."""
    doubled: list[tuple[str, int]] = []
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        doubled += [(key, node.value[at][0].start_mark.line + 1) for at, key in enumerate(keys) if key in keys[:at]]
        for _, value in node.value:
            doubled += _doubled(value)
    return doubled
