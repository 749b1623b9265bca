"""Tasks about processes and git."""

from __future__ import annotations

import hashlib
import zlib
from random import Random

from agentrl.tasks.shell.draft import ANSWER, Draft, distinct, exact, lines, word

WORKER = """#!/bin/bash
# Counts in secret until it is told to end by SIGTERM.
trap 'rev token.txt > last.txt; exit 0' TERM
tr 'a-y' 'b-z' < seed.txt > token.txt
while true; do sleep 0.05 & wait $!; done
"""


def run_worker(rng: Random) -> Draft:
    """Run a program in the background and end it."""
    seed = word(rng).replace("z", "y")
    token = "".join(chr(ord(letter) + 1) if letter.isalpha() else letter for letter in seed)
    return Draft(
        "worker.sh runs until it receives SIGTERM. Start it in the background, wait until it has written token.txt, and "
        f"copy that to {ANSWER}. Then end it by SIGTERM and wait until it is gone; it writes last.txt as it ends.",
        {"worker.sh": WORKER, "seed.txt": f"{seed}\n"},
        [lines(ANSWER, [token]), lines("token.txt", [token]), lines("last.txt", [token[::-1]])],
        f"./worker.sh &\nuntil [ -s token.txt ]; do sleep 0.01; done\ncp token.txt {ANSWER}\nkill $!\nwait $!",
        modes={"worker.sh": 0o755},
    )


def lost_file(rng: Random) -> Draft:
    """Restore a file that a commit has deleted."""
    keep, lost = (f"{name}.txt" for name in distinct(rng, 2))
    text = f"{word(rng)}\n"
    repository = Repository()
    repository.commit({keep: f"{word(rng)}\n"}, f"Add {keep}")
    repository.commit({keep: f"{word(rng)}\n", lost: f"{word(rng)}\n"}, f"Add {lost}")
    repository.commit({keep: f"{word(rng)}\n", lost: text}, f"Correct {lost}")
    deleting = repository.commit({keep: f"{word(rng)}\n"}, f"Tidy up, {word(rng)}")
    repository.commit({keep: f"{word(rng)}\n"}, f"Change {keep}")
    return Draft(
        f"repo.git is a bare git repository with the branch main. A commit deleted its file {lost}. Write the full hash "
        f"of that commit into {ANSWER}, and the file's last content into {lost}.",
        repository.files("repo.git"),
        [lines(ANSWER, [deleting]), exact(lost, text)],
        f"git --git-dir=repo.git log -n 1 --diff-filter=D --format=%H main -- {lost} > {ANSWER}\n"
        f'git --git-dir=repo.git show "$(cat {ANSWER})^:{lost}" > {lost}',
    )


def who_changed(rng: Random) -> Draft:
    """Find the author of a line."""
    settings = {name: rng.randrange(100) for name in distinct(rng, 5)}
    authors = [name.capitalize() for name in distinct(rng, 6)]
    wanted = rng.choice(sorted(settings))
    repository = Repository()
    last: dict[str, str] = {}
    for author in [authors[0], *(rng.choice(authors[1:]) for _ in range(7))]:
        changed = [*settings] if not last else [rng.choice([wanted, *settings])]
        settings |= {name: settings[name] + 1 for name in changed}
        last |= dict.fromkeys(changed, author)
        text = "".join(f"{name}={number}\n" for name, number in settings.items())
        repository.commit({"settings.txt": text}, word(rng), author)
    return Draft(
        f"repo.git is a bare git repository with the branch main. Who changed the line of {wanted} in settings.txt last? "
        f"Write the author's name into {ANSWER}.",
        repository.files("repo.git"),
        [lines(ANSWER, [last[wanted]])],
        f"git --git-dir=repo.git log -n 1 -G'^{wanted}=' --format=%an main -- settings.txt > {ANSWER}",
    )


class Repository:
    """A bare repository whose bytes depend on its commits only: no clock, no compression."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._head = ""
        self._commits = 0

    def commit(self, files: dict[str, str], message: str, author: str = "Robin") -> str:
        """Add a commit with the whole content of a flat folder; return its hash."""
        tree = b"".join(
            b"100644 " + name.encode() + b"\0" + bytes.fromhex(self._add("blob", text.encode()))
            for name, text in sorted(files.items())
        )
        self._commits += 1
        who = f"{author} <{author.lower()}@example.org> {1_700_000_000 + 3600 * self._commits} +0000"
        parent = f"parent {self._head}\n" if self._head else ""
        body = f"tree {self._add('tree', tree)}\n{parent}author {who}\ncommitter {who}\n\n{message}\n"
        self._head = self._add("commit", body.encode())
        return self._head

    def files(self, folder: str) -> dict[str, str | bytes]:
        """Return the repository's files, by path."""
        return {
            f"{folder}/HEAD": "ref: refs/heads/main\n",
            f"{folder}/config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
            f"{folder}/refs/heads/main": f"{self._head}\n",
            **{f"{folder}/objects/{name[:2]}/{name[2:]}": data for name, data in self._objects.items()},
        }

    def _add(self, kind: str, data: bytes) -> str:
        whole = f"{kind} {len(data)}\0".encode() + data
        name = hashlib.sha1(whole).hexdigest()
        self._objects[name] = zlib.compress(whole, 0)
        return name
