"""Which flags no code of a run can read: certain only for those that nothing names, with plugins of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.args import Arguments
from slime.arguments import plugins
from slime.arguments.parser import OF_TRAINING, ON_OCCASION, parser_for, read_arguments
from slime.arguments.plugins import never_mentioned
from tests.helpers.rollout_args import rollout_args

PLANTED = "planted_quixotry"
LIVE = "openclaw.training.rollout.LedgerDataSource"
ON_CONDITION = {"kl_loss_type", "tis_clip", "tis_clip_low", "ref_update_interval", "optimizer", "lr_warmup_samples"}


@pytest.fixture
def args(tmp_path: Path) -> Arguments:
    found = rollout_args(tmp_path)
    return found.changed(
        rollout_function_path=LIVE, eval_function_path=LIVE, data_source_path=LIVE, custom_rm_path=None
    )


def test_a_flag_that_some_code_reads_on_a_condition_is_not_certain(args: Arguments) -> None:
    assert never_mentioned(args, {PLANTED, *ON_CONDITION}) == {PLANTED}


def test_a_flag_of_the_other_backend_is_certain(args: Arguments) -> None:
    names = {"reset_optimizer_states", "use_rollout_routing_replay", PLANTED}
    assert never_mentioned(args, names) == {PLANTED}
    assert never_mentioned(args.changed(train_backend="megatron"), names) == {"reset_optimizer_states", PLANTED}


def test_a_plugin_from_outside_may_read_anything(args: Arguments, tmp_path: Path) -> None:
    plugin = tmp_path / "loss.py"
    plugin.write_text("def compute_loss(args, batch): ...")
    assert never_mentioned(args.changed(custom_loss_function_path=f"{plugin}:compute_loss"), {PLANTED}) == set()


def test_every_flag_that_counts_has_a_reader(args: Arguments) -> None:
    names = {option.attribute for group in OF_TRAINING for option in group.options} - ON_OCCASION
    assert never_mentioned(args, names) == set()


def test_a_methods_flag_counts_once_it_is_given(args: Arguments, repository: Path) -> None:
    """``example_imitation`` is read by the example's loss; a reader may leave out the prefix, as in ``gui_max_steps``."""
    read = {"example_imitation", "example_steps"}
    assert never_mentioned(args, {*read, PLANTED}) == {PLANTED}
    declares = repository / "extensions" / "example-method" / "example_arguments.py"
    words = ["--custom-arguments-path", f"{declares}:add_custom_arguments", "--example-imitation"]
    for value, given in (("0.1", ()), ("0.5", ("example_imitation",))):
        parser = parser_for([*words, value])
        found, _ = read_arguments(parser, [*words, value])
        assert found.training_options_given == given


def test_what_declares_a_methods_flag_does_not_read_it() -> None:
    source = f"def add_custom_arguments(parser):\n    parser.add_argument('--x', dest='{PLANTED}')\n"
    assert PLANTED not in plugins._without_declarations(source)
    assert PLANTED in plugins._without_declarations(f"{source}\nprint(args.{PLANTED})\n")
