"""The arguments of a run as a mapping, for plugins that read ``config["name"]`` or ``config.get("name", default)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime.args.arguments import Arguments

_CHECKPOINT = "prm_model_path"


class MissingArgumentError(KeyError):
    """A plugin reads a value that the run does not have; the message says what to type."""

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigView(Mapping[str, Any]):
    """A read-only view of the arguments: ``config["lr"]``, ``config.get("lr")`` and ``config.lr`` are the same value.

    ``extra`` has further values and wins. ``prm_model_path`` is there only if the run names it: an argument that was
    derived from the policy's checkpoint would make the policy a reward model.
    """

    def __init__(self, args: Arguments, extra: Mapping[str, Any] | None = None) -> None:
        self._args = args
        self._extra = dict(extra or {})

    def _values(self) -> dict[str, Any]:
        values = {**vars(self._args), **self._extra}
        if values.get(_CHECKPOINT) in (None, values.get("hf_checkpoint")):
            values.pop(_CHECKPOINT, None)
        return values

    def __getitem__(self, name: str) -> Any:
        values = self._values()
        if name in values:
            return values[name]
        if name == _CHECKPOINT:
            raise MissingArgumentError(
                f"config[{name!r}] is the checkpoint of a reward model, not the policy's; add --prm-model-path PATH"
            )
        raise MissingArgumentError(
            f"the run has no argument {name!r}; write config.get({name!r}, DEFAULT), or set it in a file of --custom-config-path"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except MissingArgumentError as error:
            raise AttributeError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())
