"""Every metric of a step is declared: what the code writes here, what runs log in `assert_metrics_are_declared`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.training.step_metrics import METRICS, PREFIXES, undeclared_metrics
from slime.utils import streams
from slime.utils.step_metrics import AXES, STEPS
from tests.helpers.syntax import parsed

NAME = re.compile(rf"({'|'.join(PREFIXES)})/[\w/@{{}}-]+")
PLACE = "{}"
"""Stands for the value in an f-string."""


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings below a node, f-strings with `PLACE` for each value."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else PLACE for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def names_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the names of metrics that the modules of a folder write, but for those of which a variable is all but the prefix."""
    for path in folder.rglob("*.py"):
        if "contract" not in path.parts:  # names of a plugin that stands in
            for text in texts(parsed(path)):
                if NAME.fullmatch(text) and text not in AXES and text.partition("/")[2].strip("{}/"):
                    yield path, text


def is_declared(name: str) -> bool:
    """Return whether a name is declared, with a word or nothing for each value in it."""
    return any(not undeclared_metrics([name.replace(PLACE, word)]) for word in ("1", ""))


@pytest.mark.parametrize("folder", ["slime/slime", "openclaw", "agentrl"])
def test_the_tables_have_every_name_in_the_code(repository: Path, folder: str) -> None:
    missing = {(path.name, name) for path, name in names_in(repository / folder) if not is_declared(name)}
    assert missing == set(), "declare them in slime/slime.utils.step_metrics.py"


def metrics_of_losses(repository: Path) -> set[str]:
    """Return the names in the dicts that losses collect as ``metrics`` or return beside the loss."""
    results: set[str] = set()
    for path in (repository / "slime/slime/algorithms/losses").glob("*.py"):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Assign(targets=[ast.Name(id="metrics")]) | ast.AugAssign(target=ast.Name(id="metrics")):
                    results |= _keys(node.value)
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id="metrics"), slice=ast.Constant(value=str(key)))]
                ):
                    results.add(key)
                case ast.Return(value=ast.Tuple(elts=[_, second])):
                    results |= _keys(second)
                case ast.Return(value=ast.Dict()):
                    results |= _keys(node.value)
    return results


def _keys(value: ast.AST | None) -> set[str]:
    keys = [key for node in ast.walk(value or ast.Pass()) if isinstance(node, ast.Dict) for key in node.keys]
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def test_the_table_of_steps_has_what_losses_return(repository: Path) -> None:
    names = metrics_of_losses(repository)
    assert {"loss", "topk_tail", "opd_share", "value_loss", "tis", "train_rollout_kl"} <= names
    assert {f"train/{name}" for name in names} <= {metric.name for metric in STEPS}


def test_the_table_of_rollouts_has_every_logged_stream() -> None:
    assert undeclared_metrics(f"rollout/{stream.name}" for stream in streams.STREAMS if stream.logged) == []


def test_an_unknown_metric_is_named_and_that_of_a_plugin_is_not() -> None:
    names = ["train/unheard_of", "train/step", "perf/actor_train_time", "eval/math/answers", "terminal/accuracy"]
    assert undeclared_metrics(names) == ["train/unheard_of"]


def test_no_metric_is_declared_twice() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
