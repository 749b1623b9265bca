"""``python -m openclaw.models``: list the models of the launch scripts, or download one to where they look for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from groundwork.command_line import CommandLine
from openclaw.models.fetch import FetchError, endpoint_of, fetch, gigabytes, read_listing
from openclaw.models.places import COMMAND, KNOWN, USUAL, hub_name, missing_files, place_of, shown

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
    return parser


def list_models() -> None:
    """Print the models of the launch scripts: size, licence, and whether they are here."""
    print(f"{'model':<14} {'download':>9}  {'licence':<12} folder")
    for item in KNOWN:
        folder = place_of(item.name)
        state = shown(folder) if folder.is_dir() and not missing_files(folder) else "not downloaded"
        print(f"{item.name:<14} {item.gigabytes:>6.1f} GB  {item.licence:<12} {state}")
    print(f"\ndownload one: {COMMAND} {USUAL}")


def get(name: str, folder: Path) -> None:
    """Download a model, unless its folder is there.

    Raises:
        FetchError: it cannot be downloaded, or the folder holds something else.
    """
    if folder.exists():
        if missing := missing_files(folder) if folder.is_dir() else [folder.name]:
            raise FetchError(
                f"{shown(folder)} exists but lacks {', '.join(missing)}; move it away and repeat the command"
            )
        print(f"{shown(folder)} is complete; nothing to download")
        return
    endpoint = endpoint_of()
    listing = read_listing(hub_name(name), endpoint)
    print(f"{listing.hub}: {gigabytes(listing.total)}, licence {listing.licence}, to {shown(folder)}", flush=True)
    fetch(listing, folder, endpoint)
    print(f"{shown(folder)} is complete")
    if folder != place_of(name):
        print(f"the launch scripts use it with: export HF_CKPT={shlex.quote(str(folder))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; return the exit status."""
    options = build_parser().parse_args(argv)
    if options.name is None:
        list_models()
        return 0
    folder = (options.folder or place_of(options.name)).expanduser().absolute()
    try:
        get(options.name, folder)
    except FetchError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; continue: {COMMAND} {shlex.join(sys.argv[1:] if argv is None else argv)}", file=sys.stderr)
        return INTERRUPTED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
