"""The table of losses and back ends in the documentation is what the tests and the command line make true."""

from __future__ import annotations

from pathlib import Path

import pytest

import slime.algorithms.losses.topk_distillation as topk
from slime.arguments import parse_args
from slime.arguments.algorithm import ALGORITHM, ESTIMATORS
from tests.helpers import pairs
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only
from tests.helpers.gradient_cases import LOSSES

CRITIC = "ppo"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    model = config_only(tmp_path / "model")
    return (
        f"--hf-checkpoint {model} --rollout-batch-size 16 --num-rollout 2 --device cpu --run-dir {tmp_path}/r".split()
    )


def table(repository: Path) -> dict[tuple[str, str], str]:
    """Cells of the page's table by row and column."""
    lines = (repository / "instructions" / "backends.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| | FSDP2, full"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    header = rows[0][1:]
    end = next(number for number, line in enumerate(lines[start:]) if not line.startswith("|"))
    return {(row[0], column): cell for row in rows[2:end] for column, cell in zip(header, row[1:], strict=True)}


def test_the_table_says_what_is_trained_and_what_is_refused(repository: Path) -> None:
    cells = table(repository)
    assert {row for row, _ in cells} >= set(pairs.ROWS)
    assert {column for _, column in cells} == set(pairs.COLUMNS)
    for row, losses in pairs.ROWS.items():
        for column in pairs.COLUMNS:
            refused = {(loss, column) in pairs.REFUSED for loss in losses}
            assert cells[row, column].startswith("refused" if refused == {True} else "yes"), (row, column)
            assert len(refused) == 1, (row, column)


def test_every_loss_and_estimator_is_in_the_table() -> None:
    rows = {loss for losses in pairs.ROWS.values() for loss in losses}
    assert rows == {*LOSSES, CRITIC}
    assert {*ESTIMATORS} <= rows
    types = next(option.choices for option in ALGORITHM.options if option.flag == "--loss-type")
    assert {change.get("loss_type", "policy_loss") for change in LOSSES.values()} == set(types or ())
    divergences = {f"{pairs.TOPK_LOSS}.{name}" for name in vars(topk) if name.endswith("topk_distillation_loss")}
    assert divergences == {change["custom_loss_function_path"] for name, change in LOSSES.items() if "top-K" in name}


@pytest.mark.parametrize("column", pairs.COLUMNS)
@pytest.mark.parametrize("row", pairs.ROWS)
def test_a_pair_starts_or_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str], row: str, column: str
) -> None:
    for loss, flags in pairs.ROWS[row].items():
        given = [*words, *flags, *pairs.COLUMNS[column]]
        message = pairs.REFUSED.get((loss, column))
        if message is None:
            args = parse_args(given)
            assert (args.train_backend, args.use_lora) == (column.split()[0].strip(",2").lower(), "LoRA" in column)
        else:
            assert message in refusal(capsys, given)
