"""A Chinese page says what its English twin says: the same commands, names, links, tables and numbers.

The twin of ``README_zh.md`` is ``README.md``, that of ``instructions/zh/NAME.md`` is ``instructions/NAME.md``. Only the index
``instructions/zh/README.md`` has none. A change of an English page fails here until its Chinese twin has the change, too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.page_commands.blocks import ROOT, SHELL, blocks_of, read_page

FOLDER = Path("instructions/zh")
INDEX = FOLDER / "README.md"
ENGLISH = {"README_zh.md": "README.md"} | {
    page.relative_to(ROOT).as_posix(): f"instructions/{page.relative_to(ROOT / FOLDER).as_posix()}"
    for page in sorted((ROOT / FOLDER).rglob("*.md"))
    if page != ROOT / INDEX
}
"""The English twin of each Chinese page."""
FIRST_READ = ("first_run", "clients", "adapters", "gate", "lessons", "security", "ledger")
PUNCTUATION = "。，；：、！？）」”"


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def prose_of(page: str) -> str:
    return blocks_of(page, text_of(page))[1]


def spans(page: str) -> set[str]:
    """Return what a page sets as code in its text, without the line breaks of its paragraphs."""
    return {re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose_of(page))}


def without_spans_and_links(page: str) -> str:
    return re.sub(r"\]\([^)]*\)|`[^`]+`|<[^>]*>|https?://\S+", " ", prose_of(page))


def numbers(page: str) -> Counter[str]:
    """Return the numbers of a page's tables, and once each of those in its sentences."""
    text = without_spans_and_links(page)
    table = [line for line in text.splitlines() if line.startswith("|")]
    rest = re.sub(r"^\s*\d{1,2}\. |^[|].*$", "", text, flags=re.MULTILINE)
    found = r"\d+(?:[.,]\d+)*"
    return Counter(re.findall(found, "\n".join(table))) + Counter(set(re.findall(found, rest)))


def linked(page: str) -> set[str]:
    """Return what a page links, with English pages for their Chinese twins, and without anchors."""
    targets = set()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        name = target.partition("#")[0]
        if target.startswith("http"):
            targets.add(target)
        elif name:
            path = (ROOT / page).parent.joinpath(name).resolve().relative_to(ROOT).as_posix()
            targets.add(ENGLISH.get(path, path))
    return targets - {ENGLISH.get(page, page), INDEX.as_posix()}


def shape(page: str) -> list[str]:
    """Return the headings by their depth, and each table by its number of columns and rows, in reading order."""
    result: list[str] = []
    for line in prose_of(page).splitlines():
        if heading := re.match(r"#+ ", line):
            result.append(heading[0])
        elif line.startswith("|"):
            result.append(f"row of {line.replace(chr(92) + '|', '').count('|') - 1}")
    return result


def beside(page: str) -> str:
    """Return where a page's third line links its twin."""
    return text_of(page).splitlines()[2]


def test_the_pages_that_are_read_first_have_a_twin() -> None:
    assert {f"instructions/{name}.md" for name in FIRST_READ} <= set(ENGLISH.values())


@pytest.mark.parametrize("chinese", ENGLISH)
class TestTwin:
    def test_links_and_is_linked(self, chinese: str) -> None:
        english = ENGLISH[chinese]
        back, there = (os.path.relpath(to, Path(page).parent) for page, to in ((chinese, english), (english, chinese)))
        assert beside(chinese) == f"[English]({back})"
        assert beside(english) == f"[中文]({there})", f"the third line of {english} has to link its Chinese twin"

    def test_has_the_same_commands(self, chinese: str) -> None:
        english = ENGLISH[chinese]
        shown = [[command.text for command in read_page(page)[1]] for page in (english, chinese)]
        assert Counter(shown[0]) == Counter(shown[1])

    def test_has_the_same_blocks(self, chinese: str) -> None:
        english, other = (
            [(block.language, "" if block.language in SHELL else block.text) for block in read_page(page)[0]]
            for page in (ENGLISH[chinese], chinese)
        )
        assert english == other

    def test_has_the_same_words_in_code(self, chinese: str) -> None:
        english, other = spans(ENGLISH[chinese]), spans(chinese)
        assert (english - other, other - english) == (set(), set())

    def test_links_the_same_pages(self, chinese: str) -> None:
        english, other = linked(ENGLISH[chinese]), linked(chinese)
        assert (english - other, other - english) == (set(), set())

    def test_has_the_same_sections_and_tables(self, chinese: str) -> None:
        assert shape(ENGLISH[chinese]) == shape(chinese)

    def test_has_the_same_numbers(self, chinese: str) -> None:
        english, other = numbers(ENGLISH[chinese]), numbers(chinese)
        assert (english - other, other - english) == (Counter(), Counter())

    def test_prefers_a_chinese_page_to_its_english_twin(self, chinese: str) -> None:
        names = re.findall(r"\]\((?!http)([^)#\s]+)", prose_of(chinese))
        paths = {(ROOT / chinese).parent.joinpath(name).resolve().relative_to(ROOT).as_posix() for name in names}
        assert paths & set(ENGLISH.values()) == {ENGLISH[chinese]}

    def test_breaks_its_lines_after_punctuation(self, chinese: str) -> None:
        # A browser shows a line break as a space, which stands between two Chinese words.
        lines = prose_of(chinese).splitlines()
        for line, following in pairwise(lines):
            if re.search(r"[\u4e00-\u9fff]", line) and re.match(r" *[\u4e00-\u9fff]", following):
                assert line.endswith(tuple(PUNCTUATION)) or line.startswith("#"), line
