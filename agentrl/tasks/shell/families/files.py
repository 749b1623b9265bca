"""Tasks about names, permissions, links and archives."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from random import Random

from agentrl.tasks.shell.draft import ANSWER, Draft, absent, archive, distinct, exact, lines, link, mode, names, word


def set_modes(rng: Random) -> Draft:
    """Set permissions by kind of file."""
    script, key = rng.choice([0o750, 0o700, 0o755]), rng.choice([0o600, 0o400])
    paths = [f"app/{name}" for name in distinct(rng, 9)]
    scripts = [f"{path}.sh" for path in paths[:4]]
    keys = [f"{path}.key" for path in paths[4:7]]
    others = [f"{path}.txt" for path in paths[7:]]
    return Draft(
        f"Below the folder app, give the files *.sh the permissions {script:o}, and the files *.key the permissions "
        f"{key:o}. Leave all others alone.",
        {path: f"{word(rng)}\n" for path in (*scripts, *keys, *others)},
        [
            *(mode(path, script) for path in scripts),
            *(mode(path, key) for path in keys),
            *(mode(path, 0o640) for path in others),
        ],
        f"find app -name '*.sh' -exec chmod {script:o} {{}} +\nfind app -name '*.key' -exec chmod {key:o} {{}} +",
        modes=dict.fromkeys((*scripts, *keys), 0o644) | dict.fromkeys(others, 0o640),
    )


def number_files(rng: Random) -> Draft:
    """Rename files to numbers in the order of their names."""
    prefix, found = rng.choice(["photo", "scan", "page"]), sorted(distinct(rng, 8))
    texts = {name: word(rng) for name in found}
    new = {name: f"{prefix}-{index:03}.jpg" for index, name in enumerate(found, 1)}
    return Draft(
        f"Rename the files in the folder pictures in the order of their names to {prefix}-001.jpg, {prefix}-002.jpg and "
        "so on.",
        {f"pictures/{name}.JPEG": f"{text}\n" for name, text in texts.items()},
        [names("pictures", new.values()), *(exact(f"pictures/{new[name]}", f"{texts[name]}\n") for name in found)],
        f'cd pictures\nn=0\nfor f in *.JPEG; do n=$((n + 1)); mv "$f" "$(printf "{prefix}-%03d.jpg" "$n")"; done',
    )


def latest_release(rng: Random) -> Draft:
    """Link to the newest of several versions."""
    versions = {f"{rng.randrange(1, 3)}.{rng.randrange(1, 30)}.{rng.randrange(30)}" for _ in range(7)}
    newest = max(versions, key=lambda each: [int(part) for part in each.split(".")])
    return Draft(
        "The folder releases has a folder per version. Make the symbolic link current, with a relative target, that "
        "leads to the folder of the newest version. Version 1.10.0 is newer than 1.9.0.",
        {f"releases/{each}/name.txt": f"{word(rng)}\n" for each in sorted(versions)},
        [link("current", f"releases/{newest}")],
        'ln -s "releases/$(ls releases | sort -V | tail -n 1)" current',
    )


def pack_texts(rng: Random) -> Draft:
    """Pack some of the files into an archive."""
    found = distinct(rng, 8)
    files = {f"src/{name}.{'md' if index % 2 else 'tmp'}": f"{word(rng)}\n" for index, name in enumerate(found)}
    name = f"{word(rng)}.tar.gz"
    return Draft(
        f"Pack all files *.md of the folder src into the archive {name}, compressed by gzip. Their names in the archive "
        "have no folder, such as some.md.",
        files,
        [archive(name, {path.removeprefix("src/"): text for path, text in files.items() if path.endswith(".md")})],
        f"cd src\ntar -czf ../{name} *.md",
    )


def unpack_one(rng: Random) -> Draft:
    """Unpack one file out of an archive in an archive."""
    texts = {f"{name}.txt": f"{word(rng)}\n" for name in distinct(rng, 6)}
    chosen = rng.choice(sorted(texts))
    inner = _tar({f"deep/{path}": text.encode() for path, text in texts.items()})
    return Draft(
        f"The archive outer.tar has the archive inner.tar in it. Unpack only {chosen} from its folder deep to {ANSWER}, "
        "and leave nothing else behind but outer.tar.",
        {"outer.tar": _tar({"backup/inner.tar": inner, "backup/README": b"see inner.tar\n"})},
        [exact(ANSWER, texts[chosen]), names(".", [ANSWER, "outer.tar"])],
        f"tar -xOf outer.tar backup/inner.tar | tar -xOf - deep/{chosen} > {ANSWER}",
    )


def remove_duplicates(rng: Random) -> Draft:
    """Remove files with equal content, all but the first by name."""
    texts = [word(rng) for _ in range(4)]
    files = {f"box/{name}": f"{rng.choice(texts)}\n" for name in distinct(rng, 10)}
    first: dict[str, str] = {}
    for path in sorted(files):
        first.setdefault(files[path], path)
    kept = set(first.values())
    return Draft(
        "Some files in the folder box have the same content. Of such files keep only the one whose name comes first in "
        "the alphabet, and remove the others.",
        files,
        [
            names("box", (path.removeprefix("box/") for path in kept)),
            *(exact(path, files[path]) for path in sorted(kept)),
        ],
        "cd box\nsha256sum * | sort -k1,1 -k2 | awk 'seen[$1]++ { print $2 }' | xargs -r rm --",
    )


def find_damaged(rng: Random) -> Draft:
    """Compare files with their checksums."""
    files = {f"store/{name}.bin": f"{word(rng)}\n" * 5 for name in sorted(distinct(rng, 9))}
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {path}\n" for path, text in files.items())
    damaged = sorted(rng.sample(sorted(files), rng.randrange(2, 4)))
    lost = rng.choice([path for path in files if path not in damaged])
    left = {path: text + "\n" * (path in damaged) for path, text in files.items() if path != lost}
    return Draft(
        "SHA256SUMS has the checksums of the files in the folder store. Write the paths of those that are damaged or "
        f"missing into {ANSWER}, one a line, sorted. Remove the damaged ones.",
        {**left, "SHA256SUMS": sums},
        [lines(ANSWER, sorted([*damaged, lost])), *(absent(path) for path in damaged)]
        + [exact(path, text) for path, text in left.items() if path not in damaged],
        f"sha256sum --check SHA256SUMS 2> /dev/null | awk -F: '/FAILED/ {{ print $1 }}' | LC_ALL=C sort > {ANSWER}\n"
        f"xargs rm -f < {ANSWER}",
    )


def _tar(members: Mapping[str, bytes]) -> bytes:
    """Return an archive that depends on its members only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()
