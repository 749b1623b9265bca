"""Going back to an earlier weight version on command: which checkpoint a note asks for, and when the note is done with.

`slime.utils.rollback` describes the note. Guarantees: a version that no checkpoint holds changes nothing and is told with one line.
The note stays while processes are lost, so a run that starts again goes back too; any other failure removes it, so that it is
not met again at each start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from groundwork.process import Stopped
from slime.args import Arguments
from slime.checkpoints.versions import SavedVersion, newest_of_version, saved_versions
from slime.exceptions import LostError
from slime.ray.report import say
from slime.utils.rollback import asked_rollback, forget_rollback


class Rollbacks:
    """The notes of a run. Owned by the driver."""

    def __init__(self, args: Arguments) -> None:
        self._args = args

    def at_start(self) -> None:
        """Forget the note of an earlier run in the folder, unless this run continues it."""
        if not self._args.resume:
            forget_rollback(self._args.run_dir)

    @contextmanager
    def due(self, serving: str) -> Iterator[SavedVersion | None]:
        """Run the block with the checkpoint to go back to, or None, then remove this note; ``serving`` is the weight version."""
        note = asked_rollback(self._args.run_dir) if self._args.run_dir else None
        if note is None:
            yield None
            return
        saved = newest_of_version(Path(self._args.save), note.version) if self._args.save else None
        if saved is None or note.version == serving:
            forget_rollback(self._args.run_dir, note)
            say(self._why_not(note.version, serving))
            yield None
            return
        try:
            yield saved
        except (LostError, Stopped):
            raise
        except Exception:
            forget_rollback(self._args.run_dir, note)
            raise
        forget_rollback(self._args.run_dir, note)

    def _why_not(self, version: str, serving: str) -> str:
        if version == serving:
            return f"no rollback: weights {version} serve already"
        if not self._args.save:
            return f"no rollback to weights {version}: the run has no checkpoints (--save FOLDER)"
        known = ", ".join(dict.fromkeys(saved.weight_version for saved in saved_versions(Path(self._args.save))))
        return f"no rollback: no checkpoint in {self._args.save} holds weights {version}; they hold {known or 'nothing yet'}"
