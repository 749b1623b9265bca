"""Tasks of one command each; most names are single words, which a model of a million parameters can copy."""

from __future__ import annotations

from random import Random

from agentrl.tasks.shell.draft import ANSWER, Draft, absent, distinct, exact, lines, names, word


def write_word(rng: Random) -> Draft:
    """Write a word into a file."""
    chosen = word(rng)
    return Draft(f"Write the word {chosen} into {ANSWER}.", {}, [lines(ANSWER, [chosen])], f"echo {chosen} > {ANSWER}")


def copy_file(rng: Random) -> Draft:
    """Copy a file to another name."""
    source, target = (f"{name}.txt" for name in distinct(rng, 2))
    text = f"{word(rng)}\n"
    return Draft(
        f"Copy the file {source} to {target}.",
        {source: text},
        [exact(source, text), exact(target, text)],
        f"cp {source} {target}",
    )


def rename_file(rng: Random) -> Draft:
    """Give a file another name."""
    source, target = (f"{name}.txt" for name in distinct(rng, 2))
    text = f"{word(rng)}\n"
    return Draft(
        f"Rename the file {source} to {target}.",
        {source: text},
        [absent(source), exact(target, text)],
        f"mv {source} {target}",
    )


def make_folder(rng: Random) -> Draft:
    """Make a folder with one file in it."""
    folder, name, text = distinct(rng, 3)
    file = f"{name}.txt"
    return Draft(
        f"Make the folder {folder}. In it, make the file {file} with the line {text}, and nothing else.",
        {},
        [names(folder, [file]), lines(f"{folder}/{file}", [text])],
        f"mkdir {folder}\necho {text} > {folder}/{file}",
    )
