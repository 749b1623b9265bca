"""Tasks of one command each, about names that a model of a million parameters can copy: a word and a digit."""

from __future__ import annotations

from random import Random

from agentrl.tasks.shell.draft import Draft, absent, distinct, exact, lines, names, word


def _short(rng: Random, count: int) -> list[str]:
    """Return names that begin with different words."""
    return [f"{chosen}{rng.randrange(10)}" for chosen in distinct(rng, count)]


def write_word(rng: Random) -> Draft:
    """Write a word into a file."""
    chosen, name = _short(rng, 2)
    file = f"{name}.txt"
    return Draft(f"Write the word {chosen} into {file}.", {}, [lines(file, [chosen])], f"echo {chosen} > {file}")


def copy_file(rng: Random) -> Draft:
    """Copy a file to another name."""
    source, target = (f"{name}.txt" for name in _short(rng, 2))
    text = f"{word(rng)}\n"
    return Draft(
        f"Copy the file {source} to {target}.",
        {source: text},
        [exact(source, text), exact(target, text)],
        f"cp {source} {target}",
    )


def rename_file(rng: Random) -> Draft:
    """Give a file another name."""
    source, target = (f"{name}.txt" for name in _short(rng, 2))
    text = f"{word(rng)}\n"
    return Draft(
        f"Rename the file {source} to {target}.",
        {source: text},
        [absent(source), exact(target, text)],
        f"mv {source} {target}",
    )


def make_folder(rng: Random) -> Draft:
    """Make a folder with one file in it."""
    folder, name, text = _short(rng, 3)
    file = f"{name}.txt"
    return Draft(
        f"Make the folder {folder}. In it, make the file {file} with the line {text}, and nothing else.",
        {},
        [names(folder, [file]), lines(f"{folder}/{file}", [text])],
        f"mkdir {folder}\necho {text} > {folder}/{file}",
    )
