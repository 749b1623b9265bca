"""``python -m slime.contract FLAGS``: check every plugin that the flags of a launch command name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import indent

from groundwork.exceptions import ConfigError
from slime.arguments.parser import parser_for
from slime.arguments.yaml_files import with_config_file
from slime.contract.check import check, checked_by, named_plugins
from slime.contract.clauses import CLAUSES, KINDS, ContractViolation
from slime.exceptions import PluginError

USAGE = """usage: python -m slime.contract FLAGS | --clauses

FLAGS are those of slime/train_async.py. Each plugin that they name is checked with `args` from the same FLAGS.
--clauses prints every clause. These flags name plugins:
"""


def main(words: Sequence[str]) -> int:
    """Print a line per plugin, and each clause that it breaks; return 0 if all pass, 1 if one fails, 2 if there is none."""
    if list(words) == ["--clauses"]:
        for clause, text in CLAUSES.items():
            print(f"{clause}: the plugin {text}")
        return 0
    try:
        plugins = named_plugins(words)
    except ConfigError as error:
        print(error)
        return 2
    if not words or "--help" in words or "-h" in words:
        print(USAGE + "\n".join(f"  {kind.flag}" for kind in KINDS.values()))
        return 0 if words else 2
    parser = parser_for(words)
    parser.prog = "slime.contract"
    _, unknown = parser.parse_known_args(with_config_file(parser, words))
    if unknown:
        parser.unknown(unknown)
    if not plugins:
        print("no flag names a plugin; --help lists the flags that do")
        return 2
    broken = 0
    for kind, path in plugins:
        try:
            if command := checked_by(kind, path):
                print(f"live     {KINDS[kind].flag} {path}: it learns from conversations; check its method: {command}")
                continue
            check(kind, path, words)
        except (ContractViolation, PluginError, ConfigError) as error:
            broken += 1
            print(f"rejected {KINDS[kind].flag} {path}\n{indent(str(error), '  ')}")
        else:
            print(f"accepted {KINDS[kind].flag} {path}: {len(KINDS[kind].clauses)} clauses")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
