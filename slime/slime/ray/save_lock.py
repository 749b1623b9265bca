"""Lock the folders that a run saves to while its driver lives.

Guarantees: if two drivers name the same folder in ``--save`` or ``--critic-save``, by any path, one gets it and the
other learns who has it. The lock is the kernel's (``flock`` on ``save.lock`` in the folder) and ends with the driver,
so a resumed run finds it free; restarts within a run keep it.

It works between processes of one machine, and between machines if the file system supports it: NFS, CephFS, GPFS,
Lustre mounted with ``flock``; not NFS with ``nolock`` or ``local_lock``. An NFS server frees the lock of a lost machine
when its lease ends or the machine returns. On a file system without locks the run prints a warning and continues.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.dry_run import check_still_free
from slime.arguments.process_environment import JOB_VARIABLE
from slime.utils.run_logs import say

LOCK = "save.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def own_save_folders(args: Arguments) -> Iterator[None]:
    """Lock the given folders of ``--save`` and ``--critic-save`` for the length of the block.

    Raises:
        ConfigError: another run has one of them, or wrote checkpoints there since the arguments were checked.
    """
    with ExitStack() as held:
        for flag, folder in (("--save", args.save), ("--critic-save", args.critic_save)):
            if folder:
                held.enter_context(own_folder(flag, Path(folder), args))
        check_still_free(args)
        yield


def this_run(args: Arguments) -> str:
    """Return who holds the folder, for another run's error message."""
    job = json.loads(os.environ.get(JOB_VARIABLE) or "{}").get("metadata", {}).get("job_submission_id")
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    name = f"job {job}, " if job else ""
    return f"{name}process {os.getpid()} on {socket.gethostname()}, run folder {args.run_dir}, since {since}"


@contextmanager
def own_folder(flag: str, folder: Path, args: Arguments) -> Iterator[None]:
    """Lock one folder for the length of the block; ``flag`` named it.

    Raises:
        ConfigError: another run has it, or it cannot be written to.
    """
    owner = this_run(args)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"{flag} {folder} cannot be written to ({error}); name another folder") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "a run that has just started"
            raise ConfigError(
                f"{flag} {folder} is in use by another run ({other}); name another folder, or end that run first"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            say(
                f"{flag} {folder}: the file system does not support locks ({error.strerror}); make sure that no other run saves there"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # releases the lock
