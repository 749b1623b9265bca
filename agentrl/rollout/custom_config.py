"""What ``--custom-config-path`` may say to a plugin: attributes of the run's arguments, read into a model with documented defaults.

Guarantee: a value that the model refuses is an error that names it.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from groundwork.exceptions import ConfigError
from slime.args import Arguments


class CustomConfig(BaseModel):
    """A plugin's values; a subclass declares them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def of(cls, args: Arguments) -> Self:
        """Return what the run's arguments say.

        Raises:
            ConfigError: a value is unusable.
        """
        given = vars(args)
        try:
            return cls.model_validate({name: given[name] for name in cls.model_fields if name in given})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ConfigError(f"--custom-config-path {args.custom_config_path}: {problems}") from None
