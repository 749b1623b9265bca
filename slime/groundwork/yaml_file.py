"""Read a YAML file of settings that a person wrote.

Guarantees: whatever the file holds, the answer is its mapping or one `ConfigError` of one line that names file and
line. A key that stands twice is an error, because YAML would drop the first in silence. Tags are errors, so nothing is
ever constructed but plain values, and anchors cannot multiply into more than a few thousand of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import yaml

from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_VALUES = 10_000
MERGE, TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
EXAMPLE = "write lines such as `lr: 1e-6`"


class _Refused(yaml.YAMLError):
    """What YAML allows and a file of settings does not."""

    def __init__(self, line: int, said: str) -> None:
        super().__init__(said)
        self.line, self.said = line, said


class _Loader(yaml.SafeLoader):
    """Refuses tags and deep nesting while it reads."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        line = event.start_mark.line + 1
        if getattr(event, "tag", None) not in (None, "!"):
            raise _Refused(line, f"the tag {event.tag} is not read here; write a plain value")
        if self.depth > MAX_DEPTH:
            raise _Refused(line, f"nests more than {MAX_DEPTH} levels deep; {EXAMPLE}")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml_mapping(flag: str, path: str) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Args:
        flag: what named the file, for the message.
        path: of the file; a leading ``~`` is the home folder.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds something else than ``name: value`` lines.
    """
    where = f"{flag} {path}"
    text = _text_of(where, Path(path).expanduser())
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise _Refused(1, f"the file is empty; {EXAMPLE}, or leave {flag} out")
        if not isinstance(node, yaml.MappingNode):
            raise _Refused(_line(node), f"holds no `name: value` line; {EXAMPLE}")
        _check(node, 0, [0])
        return loader.construct_document(node)
    except _Refused as error:
        raise ConfigError(f"{where} line {error.line}: {error.said}") from None
    except yaml.YAMLError as error:
        _refuse(where, error)
    except ValueError as error:  # a date such as 2020-13-45
        raise ConfigError(f"{where} holds a value that cannot be read ({error}); put it in quotes") from None


def _text_of(where: str, file: Path) -> str:
    """Return a file's text; a byte order mark is not part of it."""
    if file.is_dir():
        raise ConfigError(f"{where} is a folder; name a file in it")
    try:
        if not file.is_file():
            what = "not a plain file" if file.exists() else f"no such file{nearest_path(file)}"
            raise ConfigError(f"{where}: {what}")
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read ({error.strerror}); make it readable") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{where} has more than {MAX_BYTES} bytes; a file of settings is smaller")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{where} line {line}: the byte {content[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None


def _check(node: yaml.Node, depth: int, count: list[int]) -> None:
    """Refuse keys that are not text or stand twice, and anchors that expand too far."""
    count[0] += 1
    if depth > MAX_DEPTH or count[0] > MAX_VALUES:
        raise _Refused(_line(node), f"its anchors expand to more than {MAX_VALUES} values; write the values out")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, depth + 1, count)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == MERGE:
                _check(value, depth + 1, count)
                continue
            if key.tag != TEXT:
                written = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise _Refused(_line(key), f"{written} is not a name of a setting; {EXAMPLE}")
            if key.value in lines:
                raise _Refused(_line(key), f"{key.value} stands in line {lines[key.value]} too; keep one of them")
            lines[key.value] = _line(key)
            _check(value, depth + 1, count)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _refuse(where: str, error: yaml.YAMLError) -> NoReturn:
    """Raise ConfigError with the place and reason of a YAML error."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f" line {mark.line + 1}" if mark else ""
    if "single document" in str(getattr(error, "context", "")):
        raise ConfigError(f"{where}{place}: a second document begins; keep one, without a line ---") from None
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    raise ConfigError(f"{where}{place} is not YAML: {' '.join(str(problem).split())}; {EXAMPLE}") from None
