"""The files of an instance's repository at its commit: generated, from a local mirror or archive, or from its image.

Below the folder of the instances, ``repos/`` has ``OWNER__NAME.git`` (a mirror or a clone), ``OWNER__NAME.bundle``, ``INSTANCE.tar.gz`` or
``OWNER__NAME-COMMIT.tar.gz`` (also ``.tar``). Guarantees: nothing is fetched from a network. What comes out has no history, so neither an agent nor the
grader can find a later commit in it; links that lead upwards are left out. Attributes that would leave files out of an archive do not count.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import tempfile
import threading
import zlib
from functools import lru_cache
from pathlib import Path

from agentrl.exceptions import InfraError
from agentrl.tasks.links import unlinked
from agentrl.tasks.shell.snapshot import UnusableError, clean, put, take
from agentrl.tasks.shell.verify import Start
from agentrl.tasks.swe.generate import files_of, is_generated
from agentrl.tasks.swe.grade import apply
from agentrl.tasks.swe.instance import Instance
from agentrl.tasks.swe.traps import path_of
from agentrl.tasks.swe.tree import MAX_TREE, UNTAKEN, Entries, entries_of, tree_of, tree_of_files
from groundwork.exceptions import ConfigError

REPOS = "repos"
IN_IMAGE = "/testbed"
"""Where the images of SWE-bench and its relatives have the repository."""
GIT_S = 300.0
GZIP = b"\x1f\x8b"


async def whole_tree(instance: Instance, folder: Path | None, start: Start, *, in_image: bool) -> bytes:
    """Return the repository as an archive: with the mistake, and with tests that the agent must not see.

    Args:
        instance: of the source.
        folder: of the instances.
        start: starts a sandbox, in which an image is read and a diff applied.
        in_image: whether the sandbox has the instance's image.

    Raises:
        ConfigError: there is no such repository.
        InfraError: a sandbox failed, or the repository cannot be read.
    """
    if is_generated(instance.id):
        return tree_of_files(files_of(instance.id))
    if instance.task is not None:
        return tree_of_files(instance.task.environment)
    result = b"" if in_image else from_folder(folder, instance.id, instance.repo, instance.commit)
    if result and not instance.bug:
        return result
    sandbox = await start([])
    try:
        if in_image:
            result = await take(sandbox, most_bytes=MAX_TREE, without=UNTAKEN, folder=IN_IMAGE)
        await put(sandbox, result)
        if instance.bug:
            await apply(sandbox, instance.bug, "the mistake of the data set")
        return await take(sandbox, most_bytes=MAX_TREE, without=UNTAKEN)
    except UnusableError as error:
        raise InfraError(f"the repository of {instance.id} cannot be read: {error}", code="bad_instance") from error
    finally:
        await sandbox.stop()


def visible_tree(instance: Instance, whole: bytes) -> bytes:
    """Return the repository as the agent gets it: without the files of the tests that fail, if no diff brings these."""
    if instance.grading.test_patch or instance.task is not None:
        return whole
    hidden = {*map(path_of, instance.grading.fail_to_pass)}
    return tree_of({path: entry for path, entry in entries_of(whole).items() if path not in hidden})


@lru_cache(maxsize=8)
def from_folder(folder: Path | None, name: str, repo: str, commit: str) -> bytes:
    """Return the archive of a repository below a folder of instances.

    Raises:
        ConfigError: it is not there, or is too large.
    """
    if folder is None:
        raise ConfigError(f"{name} needs its repository; set SWE_BENCH_PATH to the folder of the instances")
    repos, flat = folder / REPOS, repo.replace("/", "__")
    for stem in (name, f"{flat}-{commit}"):
        for ending in (".tar.gz", ".tgz", ".tar"):
            if (file := unlinked(folder, repos / f"{stem}{ending}")).is_file():
                return _cleaned(_unpacked(file), file, wrapped=True)
    for place in (repos / f"{flat}.git", repos / flat, repos / f"{flat}.bundle"):
        if unlinked(folder, place).exists():
            return _cleaned(_from_git(place, commit), place)
    raise ConfigError(
        f"{name}: {repos} has neither {flat}.git, {flat}.bundle nor {flat}-{commit}.tar.gz; make a mirror with: "
        f"git clone --mirror URL {repos / flat}.git"
    )


def _from_git(place: Path, commit: str) -> bytes:
    """Return the files of a commit of a mirror, a clone or a bundle."""
    with tempfile.TemporaryDirectory(prefix="swe-") as scratch:
        own = Path(scratch)
        _git("init", "-q", "--bare", str(own))
        (own / "info").mkdir(exist_ok=True)
        (own / "info" / "attributes").write_text("* -export-ignore -export-subst\n")
        if place.is_dir():
            folders = (unlinked(place, item) for item in (place / "objects", place / ".git" / "objects"))
            objects = next((folder for folder in folders if folder.is_dir()), None)
            if objects is None:
                raise ConfigError(f"{place} is not a git repository; clone the mirror again")
            (own / "objects" / "info" / "alternates").write_text(f"{objects.resolve()}\n")
        else:
            _git("--git-dir", str(own), "fetch", "-q", str(place.resolve()), "+refs/*:refs/*")
        return _git("--git-dir", str(own), "archive", "--format=tar", f"{commit}^{{tree}}")


def _git(*words: str) -> bytes:
    """Return what git prints, or the first bytes of it if that is more than a repository may have.

    Raises:
        ConfigError: it fails.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as errors:
        try:
            git = subprocess.Popen(["git", *words], env=environment, stdout=subprocess.PIPE, stderr=errors)
        except FileNotFoundError:
            raise ConfigError("git is not installed; install it") from None
        with git:
            assert git.stdout is not None
            late = threading.Timer(GIT_S, git.kill)
            late.start()
            try:
                printed = git.stdout.read(MAX_TREE + 1)
            finally:
                git.stdout.close()
                status = git.wait()
                late.cancel()
        if status != 0 and len(printed) <= MAX_TREE:
            errors.seek(0)
            raise ConfigError(f"git {words[-1]}: {errors.read().decode(errors='replace').strip()[-300:]}")
    return printed


def _unpacked(file: Path) -> bytes:
    """Return an archive without its compression.

    Raises:
        ConfigError: it cannot be read, or is too large; no more of it is unpacked than a repository may have.
    """
    try:
        with file.open("rb") as packed:
            zipped = packed.read(2) == GZIP
        with gzip.open(file) if zipped else file.open("rb") as opened:
            return opened.read(MAX_TREE + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{file} cannot be read: {error}; pack the repository again") from error


def _without_folder(kept: Entries) -> Entries:
    """Return the entries of an archive without a single folder around everything."""
    tops = {path.split("/")[0] for path in kept}
    if len(tops) != 1 or not all("/" in path for path in kept):
        return kept
    return {path.partition("/")[2]: entry for path, entry in kept.items()}


def _cleaned(tree: bytes, place: Path, *, wrapped: bool = False) -> bytes:
    if len(tree) > MAX_TREE:
        raise ConfigError(f"{place} has more than {MAX_TREE} bytes at this commit; use an image")
    try:
        kept = entries_of(clean(tree))
    except UnusableError as error:
        raise ConfigError(f"{place} cannot be read: {error}; pack the repository again, or use an image") from error
    kept = _without_folder(kept) if wrapped else kept
    return tree_of({path: entry for path, entry in kept.items() if path.split("/")[0] != ".git"})
