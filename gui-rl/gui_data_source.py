"""``--data-source-path gui_data_source.GuiMetaDataSource``: the tasks that TASK_TYPE and its variables choose, without a file of rows.

Guarantee: its position is saved with each checkpoint, as ``rollout/gui_meta_state_dict_ID.pt``, and restored.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.tasks.gui.source import GuiSource, write_rows
from slime.args import Arguments
from slime.rollout.data_source import RolloutDataSourceWithBuffer

STATE = "gui_meta_state_dict_{}.pt"


class GuiMetaDataSource(RolloutDataSourceWithBuffer):
    """Tasks of the split ``train``, in the order of their source, or shuffled with ``--rollout-shuffle``."""

    def __init__(self, args: Arguments) -> None:
        """List the tasks; rows of ``--prompt-data`` win over the variables.

        Raises:
            ConfigError: there is no task.
        """
        if not args.prompt_data:
            rows = Path(args.run_dir) / "gui_train.jsonl"
            write_rows(GuiSource.from_env().ids("train"), rows)
            args = args.changed(prompt_data=str(rows), input_key="prompt", label_key=None, metadata_key="metadata")
        super().__init__(args)

    @staticmethod
    def _file(root: str, rollout_id: int) -> Path:
        return RolloutDataSourceWithBuffer._file(root, rollout_id).with_name(STATE.format(rollout_id))
