"""``--rm-type ifbench``: each kind of instruction with a reply that follows it and one that does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.exceptions import SampleError
from slime.rollout.rm_hub import async_rm
from slime.rollout.rm_hub.ifbench import CHECKS
from slime.utils.types import Sample
from tests.unit.rewards.test_graders import options

KEYWORDS = {f"keyword{n}": word for n, word in enumerate("abcde", start=1)}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["cat", "big dog"]}, "A Cat, a big dog.", "A category, a big dog."),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "a CAT"),
    ("keywords:frequency", {"keyword": "x", "frequency": 2, "relation": "at least"}, "x X", "x xx"),
    ("keywords:frequency", {"keyword": "x", "frequency": 2, "relation": "less than"}, "x", "x x"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 3, "let_relation": "at least"}, "Eee", "ee"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\nb\n***\n"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "well"},
        "a\n\nWell, b",
        "a\n\nb well",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\nP. S. more", "Bye PS"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n**bold**"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and ** **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Part", "num_sections": 2},
        "Part 1 x Part 2 y",
        "Part 1",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A poem>>\nx", "<< >>"),
    ("combination:two_responses", {}, "a ****** b", "a ****** a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it: it", "it: say it"),
    ("startend:end_checker", {"end_phrase": "The end."}, "x the end.", "the end. x"),
    ("startend:quotation", {}, '"x"', '"x'),
    ("change_case:english_capital", {}, "A B1", "A b"),
    ("change_case:english_lowercase", {}, "a b", "a B"),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "AB and CD",
        "AB and Cd",
    ),
    ("punctuation:no_comma", {}, "a. b", "a, b"),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b c", "a b c d"),
    ("count:unique_word_count", {"N": 3}, "a b c a", "a b A"),
    ("count:conjunctions", {"small_n": 2}, "this and that but", "and and"),
    ("count:numbers", {"N": 2}, "1,000 and 2.5 of v3", "1"),
    ("count:punctuation", {}, "a, b; c: d. e! f? g?!", "a, b; c: d. e! f?"),
    ("count:keywords_multiple", KEYWORDS, "a b b c c c d d d d d e e e e e e e", "a b b c c c d d d d d e e"),
    ("words:alphabet", {}, "yes zebra ant", "yes zebra bee"),
    ("words:vowel", {}, "a big owl", "a big old hen"),
    ("words:consonants", {}, "strong apples", "a strong"),
    ("words:palindrome", {}, "level radar civic kayak refer rotor madam stats tenet solos", "level " * 10),
    ("words:prime_lengths", {}, "to the seven", "a to"),
    ("words:repeats", {"small_n": 2}, "a A b", "a a a"),
    ("words:no_consecutive", {}, "big cat bit", "big bad"),
    ("words:paragraph_last_first", {}, "So it is so.\nNo, no", "So it is"),
    ("words:words_position", {"keyword": "cat"}, "a cat is a cat now", "cat is a cat"),
    ("format:parentheses", {}, "(a[b{c(d[e])}])", "(((((a"),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "maybe so"),
    ("format:options", {"options": ["A", "B"]}, "a", "c"),
    ("format:newline", {}, "a\nb\nc", "a b\nc"),
    ("format:line_indent", {}, "a\n b\n  c", "a\n b\n c"),
    ("format:list", {"sep": "!"}, "! a\n! b", "! a\n* b"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
    ("format:no_whitespace", {}, "a_b", "a b"),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    ("repeat:repeat_change", {"prompt_to_repeat": "Write a poem"}, "Read a poem", "Write a poem"),
    (
        "repeat:repeat_simple",
        {},
        "Only output this sentence here, ignore all other requests.",
        "Sure! Only output this sentence here, ignore all other requests.",
    ),
    ("repeat:repeat_span", {"prompt_to_repeat": "abcdef", "n_start": 1, "n_end": 3}, "bcd", "bc"),
]


async def followed(reply: str, *given: tuple[str, dict[str, Any]]) -> float:
    metadata = {"instruction_id_list": [name for name, _ in given], "kwargs": [values for _, values in given]}
    return await async_rm(options("ifbench"), Sample(index=5, response=reply, metadata=metadata))


@pytest.mark.parametrize(("name", "values", "right", "wrong"), CASES)
async def test_each_kind(name: str, values: dict[str, Any], right: str, wrong: str) -> None:
    given = (name, {**values, "of_another_kind": None})
    assert (await followed(right, given), await followed(wrong, given)) == (1.0, 0.0)


def test_every_kind_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)


async def test_all_instructions_count_and_thinking_does_not() -> None:
    both = [("punctuation:no_comma", {}), ("change_case:english_lowercase", {})]
    assert await followed("<think>A, b</think>good", *both) == 1.0
    assert await followed("Good", *both) == 0.0
    assert await followed("", *both) == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [("language:response_language", {"language": "de"})],
            "cannot check these instructions here: language:response_language",
        ),
        ([("keywords:existence", {"words": ["a"]})], "arguments of keywords:existence do not fit"),
        ([], "needs metadata"),
    ],
)
async def test_what_cannot_be_checked_is_named(given: list[tuple[str, dict[str, Any]]], message: str) -> None:
    with pytest.raises(SampleError, match=rf"sample 5: .*{message}"):
        await followed("x", *given)


@given(st.text(max_size=80))
def test_no_reply_makes_a_check_raise(reply: str) -> None:
    for name, values, *_ in CASES:
        assert CHECKS[name](reply, **values) in (True, False)
