"""A folder that looks like the repository to a page's commands, and holds what the page takes for granted.

Tracked files are links. What a run, a download or an earlier page would have left is there: ledgers, a model's config,
and the files that the page itself shows. A placeholder in capitals is a file or a session of that name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.ledger.store import Ledger
from tests.helpers.agent_records import write_episode
from tests.helpers.checkpoints import config_only
from tests.page_commands.blocks import ROOT, Block, read_page
from tests.page_commands.shell import make_environment

LEDGERS = (
    "LEDGER",
    "D/ledger.sqlite",
    "RUN/ledger.sqlite",
    "RUN_DIR/ledger.sqlite",
    "runs/run_qwen3_4b_openclaw_combine/ledger.sqlite",
    "runs/tiny-cpu-combine-TIME/ledger.sqlite",
)
SESSIONS = ("SESSION", "ID")
TINY_MODEL = ".cache/tiny/KEY"
METHOD_PAGE = "CONTRIBUTING.md"
# Files that a page shows without naming them: page, what its block begins to define, file.
SHOWN = (
    ("instructions/plugins.md", "async def reward_func(", "my-method/my_reward.py"),
    ("instructions/plugins.md", "async def generate(", "my-method/my_generate.py"),
    ("instructions/offline_training.md", '{"messages"', "logs.jsonl"),
    ("instructions/rollouts.md", "# --eval-config eval.yaml", "eval.yaml"),
    ("instructions/guides/plugin_forms.md", "def compute_loss(", "my_method/custom_loss.py"),
    ("instructions/guides/skill_trending.md", '{"session_id"', "conversations.json"),
)
# Folders that a page's commands read: downloaded models and what a run saved.
FOLDERS = {
    "instructions/backends.md": ("models/Qwen3-4B", "SAVE_CKPT"),
    "instructions/operations.md": ("models/Qwen3-4B", "SAVE_CKPT/iter_0000010/adapter"),
    "instructions/tinker_server.md": ("models/Qwen3-4B",),
}
_NAMED = re.compile(r"^`(openclaw-mymethod/\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def make_ledger(path: Path) -> Path:
    """Write a ledger in which every session has one judged turn and one that waits."""
    ledger = Ledger(path)
    for session in SESSIONS:
        judged_sample(ledger, f"{session}-judged", session_id=session)
        ledger.turns.record(make_turn(f"{session}-waiting", session_id=session, index=1, messages=USER_NEXT))
    ledger.close()
    return path


def make_stage(folder: Path, page: str, ledger: Path) -> Path:
    """Make the folder for one page's commands; ``ledger`` is copied to every place that a page reads one from."""
    folder.mkdir()
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in {each.split("/")[0] for each in listing.splitlines()}:
        (folder / name).symlink_to(ROOT / name)
    make_environment(folder)
    config_only(folder / TINY_MODEL)
    for name in LEDGERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ledger, folder / name)
    write_episode(folder / "RUN", "EPISODE").close()
    for name, text in _NAMED.findall((ROOT / METHOD_PAGE).read_text()):
        write(folder / name, text)
    for name in FOLDERS.get(page, ()):
        (folder / name).mkdir(parents=True)
    blocks = read_page(page)[0]
    for of_page, start, name in SHOWN:
        if of_page == page:
            write(folder / name, _block(blocks, start).text)
    return folder


def write(path: Path, text: str) -> None:
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _block(blocks: list[Block], start: str) -> Block:
    """Return the block with a line that begins with ``start``.

    Raises:
        LookupError: no block has one.
    """
    for block in blocks:
        if any(line.startswith(start) for line in block.text.splitlines()):
            return block
    raise LookupError(f"no block has a line `{start}` any more; correct SHOWN in tests/page_commands/stage.py")
