"""``python -m openclaw.models``: list the models of the launch scripts, or download one to where they look for it.

Guarantees: files arrive in a folder with a leading dot beside the target, which gets the target's name once every file is
there and has the hub's checksum. The same command continues an interrupted download within a file, which
`huggingface_hub.snapshot_download` does not. The disk is checked before the first byte.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from groundwork.command_line import CommandLine
from openclaw.exceptions import OpenClawError
from openclaw.models.places import (
    COMMAND,
    KNOWN,
    USUAL,
    WEIGHTS,
    hub_name,
    missing_files,
    place_of,
    shown,
    tokenizer_of,
)

if TYPE_CHECKING:
    import httpx


ENDPOINT = "https://huggingface.co"
PATIENCE_SECONDS = 10.0
READ_SECONDS = 30.0
ATTEMPTS = 5
"""Connections in a row that may bring no byte."""
PAUSE_SECONDS = 1.0
SPARE_BYTES = 200_000_000
"""Left free on the disk."""
SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")


class FetchError(OpenClawError):
    """The download is impossible or broke off; the message says what to type."""


@dataclass(frozen=True)
class Listing:
    """What the hub has.

    Attributes:
        hub: name of the model.
        revision: commit on the hub.
        licence: as its page states it.
        sizes: bytes of each file to download.
        digests: SHA-256 of the files for which the hub states it.
    """

    hub: str
    revision: str
    licence: str
    sizes: dict[str, int]
    digests: dict[str, str] = field(default_factory=dict)

    def without_weights(self) -> Listing:
        """Return the tokenizer and the configuration alone."""
        kept = {name: size for name, size in self.sizes.items() if not any(fnmatch(name, each) for each in WEIGHTS)}
        return replace(self, sizes={name: size for name, size in kept.items() if not name.endswith(".index.json")})

    @property
    def has_weights(self) -> bool:
        """Return whether the files include the weights."""
        return any(fnmatch(name, each) for name in self.sizes for each in WEIGHTS)

    @property
    def total(self) -> int:
        """Return the bytes of all files."""
        return sum(self.sizes.values())


def wanted(name: str) -> bool:
    """Return whether a checkpoint needs this file; other formats and subfolders are left out."""
    return "/" not in name and (name.endswith(SUFFIXES) or name.upper().startswith("LICENSE"))


def endpoint_of(given: str | None = None) -> str:
    """Return the address of the hub; ``HF_ENDPOINT`` names a mirror."""
    return (given or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def read_listing(hub: str, endpoint: str) -> Listing:
    """Ask the hub for a model's files.

    Raises:
        FetchError: the hub is unreachable, or has no such model.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        model_info = HfApi(endpoint=endpoint).model_info(hub, files_metadata=True, timeout=PATIENCE_SECONDS)
    except GatedRepoError as error:
        raise FetchError(f"{hub} asks for consent: accept its terms at {endpoint}/{hub}, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise FetchError(f"{endpoint} has no model {hub}; check the name, or set HF_TOKEN if it is private") from error
    except HFValidationError as error:
        raise FetchError(f"{hub!r} is not a name on the hub; write OWNER/NAME, for example Qwen/Qwen3-4B") from error
    except OfflineModeIsEnabled as error:
        raise FetchError("HF_HUB_OFFLINE=1 forbids downloads; unset HF_HUB_OFFLINE") from error
    except HfHubHTTPError as error:
        raise FetchError(f"{endpoint} refused: {first_line(error)}; try again later") from error
    except (httpx.HTTPError, OSError) as error:
        raise FetchError(_unreachable(endpoint, error)) from error
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in model_info.siblings or [] if wanted(sibling.rfilename)}
    if not any(name.endswith(".safetensors") for name in sizes):
        raise FetchError(f"{hub} has no *.safetensors files; choose a model in that format")
    licence = next((tag.partition(":")[2] for tag in model_info.tags or [] if tag.startswith("license:")), "not stated")
    digests = {sibling.rfilename: sibling.lfs.sha256 for sibling in model_info.siblings or [] if sibling.lfs}
    return Listing(hub, model_info.sha or "main", licence, sizes, digests)


def fetch(listing: Listing, folder: Path, endpoint: str, say: Callable[[str], None] = print) -> None:
    """Download all files of ``listing`` to ``folder``; show a progress bar.

    Raises:
        FetchError: the disk is too small, the connection broke off, or a file arrived damaged.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        here = sum(min(_size(partial / name), size) for name, size in listing.sizes.items())
        _check_space(listing, folder, shutil.disk_usage(partial).free, listing.total - here)
        if here:
            say(f"continuing: {gigabytes(listing.total - here)} of {gigabytes(listing.total)} are left")
        _download(listing, partial, endpoint, here)
        if listing.has_weights and (missing := missing_files(partial)):
            raise FetchError(f"{listing.hub} has no {', '.join(missing)} on the hub; choose another model")
        partial.rename(folder)
    except OSError as error:
        raise FetchError(f"{shown(partial)}: {first_line(error)}; the same command continues") from error


def gigabytes(size: int) -> str:
    """Return a number of bytes for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _check_space(listing: Listing, folder: Path, free: int, needed: int) -> None:
    if free < needed + SPARE_BYTES:
        raise FetchError(
            f"{shown(folder.parent)} has {gigabytes(free)} free, and {listing.hub} needs {gigabytes(needed)}; free some, "
            f"or put it on another disk with --folder FOLDER"
        )


def _download(listing: Listing, partial: Path, endpoint: str, here: int) -> None:
    """Download the missing bytes of every file, with one progress bar over all bytes."""
    import httpx
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    client = httpx.Client(follow_redirects=True, timeout=READ_SECONDS, headers=build_hf_headers())
    client.headers["accept-encoding"] = "identity"
    with client, Progress(*columns) as progress:
        bar = progress.add_task(listing.hub, total=listing.total, completed=here)
        for name, size in sorted(listing.sizes.items()):
            progress.update(bar, description=name)
            url = hf_hub_url(listing.hub, name, revision=listing.revision, endpoint=endpoint)
            _download_file(client, url, partial / name, size, lambda count: progress.advance(bar, count))
            _check_digest(partial / name, listing.digests.get(name))


def _download_file(client: httpx.Client, url: str, path: Path, size: int, advance: Callable[[int], None]) -> None:
    """Append the missing bytes of one file; start again where a broken connection ended."""
    import httpx

    failures = 0
    while (start := _size(path)) < size or not path.is_file():
        try:
            with client.stream("GET", url, headers={"Range": f"bytes={start}-"} if start else {}) as response:
                response.raise_for_status()
                if start and response.status_code != 206:  # the server ignored the range: begin again
                    advance(-start)
                    path.unlink()
                with path.open("ab") as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                        advance(len(chunk))
            failures = 0 if _size(path) > start else failures + 1
            error: Exception | None = None
        except httpx.HTTPError as broken:
            failures = 1 if _size(path) > start else failures + 1
            error = broken
        if failures >= ATTEMPTS:
            reason = first_line(error) if error else "no data arrived"
            raise FetchError(f"the download broke off at {path.name} ({reason}); the same command continues it")
        if failures:
            time.sleep(PAUSE_SECONDS * failures)


def _check_digest(path: Path, expected: str | None) -> None:
    """Raise FetchError, and remove the file, if its content is not what the hub has."""
    if expected is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        path.unlink()
        raise FetchError(f"{path.name} arrived damaged and was removed; the same command fetches it again")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _unreachable(endpoint: str, error: BaseException) -> str:
    return (
        f"{endpoint} does not answer ({first_line(error)}); check the network, set HTTPS_PROXY, or set HF_ENDPOINT to a "
        "mirror; without any, copy the folder from a machine that has it"
    )


INTERRUPTED_EXIT = 130


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=COMMAND,
        description="Download a model from the Hugging Face hub to models/, where the launch scripts look for it. Without "
        "a name, list the models of the scripts. An interrupted download continues with the same command.",
    )
    parser.add_argument("name", nargs="?", help=f"{USUAL}, or OWNER/NAME of any model on the hub")
    parser.add_argument("--folder", type=Path, metavar="F", help="where to put it (default: models/NAME)")
    parser.add_argument(
        "--tokenizer",
        action="store_true",
        help="the tokenizer and the configuration alone, for a model that a service has (default folder: models/tokenizers/NAME)",
    )
    return parser


def list_models() -> None:
    """Print the models of the launch scripts: size, licence, and whether they are here."""
    print(f"{'model':<14} {'download':>9}  {'licence':<12} folder")
    for item in KNOWN:
        folder = place_of(item.name)
        state = shown(folder) if folder.is_dir() and not missing_files(folder) else "not downloaded"
        print(f"{item.name:<14} {item.gigabytes:>6.1f} GB  {item.licence:<12} {state}")
    print(f"\ndownload one: {COMMAND} {USUAL}")


def get(name: str, folder: Path, *, tokenizer: bool = False) -> None:
    """Download a model, or its ``tokenizer`` alone, unless its folder is there.

    Raises:
        FetchError: it cannot be downloaded, or the folder holds something else.
    """
    if folder.exists():
        if missing := _missing(folder, tokenizer=tokenizer) if folder.is_dir() else [folder.name]:
            raise FetchError(
                f"{shown(folder)} exists but lacks {', '.join(missing)}; move it away and repeat the command"
            )
        print(f"{shown(folder)} is complete; nothing to download")
        return
    endpoint = endpoint_of()
    listing = read_listing(hub_name(name), endpoint)
    if tokenizer:
        listing = listing.without_weights()
    print(f"{listing.hub}: {gigabytes(listing.total)}, licence {listing.licence}, to {shown(folder)}", flush=True)
    fetch(listing, folder, endpoint)
    print(f"{shown(folder)} is complete")
    if folder != place_of(name) and not tokenizer:
        print(f"the launch scripts use it with: export HF_CKPT={shlex.quote(str(folder))}")


def _missing(folder: Path, *, tokenizer: bool) -> list[str]:
    if not tokenizer:
        return missing_files(folder)
    return [name for name in ("config.json",) if not (folder / name).is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; return the exit status."""
    options = build_parser().parse_args(argv)
    if options.name is None:
        list_models()
        return 0
    usual = tokenizer_of if options.tokenizer else place_of
    folder = (options.folder or usual(options.name)).expanduser().absolute()
    try:
        get(options.name, folder, tokenizer=options.tokenizer)
    except FetchError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; continue: {COMMAND} {shlex.join(sys.argv[1:] if argv is None else argv)}", file=sys.stderr)
        return INTERRUPTED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
