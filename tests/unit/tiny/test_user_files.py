"""YAML files of users: what is read, what is refused, at which line, and what the message says to write."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest
from simulated_users.reading import EXAMPLES, UserFileError, built_in_names, find_user, find_users, read_user
from simulated_users.rules import Rule
from simulated_users.user import User
from word_problems.problems import draw
from word_problems.replies import draw_style, follows_rule, write

WHOLE = """\
name: polite
wish: the reply says please
rule:
  contains_any: [please]
complaints:
  - Say please.
thanks:
  - Thanks.
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "user.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(UserFileError) as refused:
        read_user(written(folder, text))
    return str(refused.value)


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_user_is_whole(name: str) -> None:
    user = find_user(name)
    assert user.name == name
    assert user.role or name in ("captain", "cheers", "spelled", "doctor", "tada"), "an LLM can play it"
    rng = random.Random(1)
    assert user.complain(rng)
    assert user.approve(rng, "What is 1 + 1?").endswith("What is 1 + 1?")


def test_defaults_are_those_of_the_demo(tmp_path: Path) -> None:
    user = read_user(written(tmp_path, WHOLE))
    assert (user.opening, user.turns, user.seeds, user.temperature, user.max_tokens) == (
        *("{question}", 3, (0, 1, 2), None),
        160,
    )


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        (1, WHOLE.replace("polite", "Polite User"), "name: 'Polite User' is not made of small letters"),
        (1, WHOLE.replace("name: polite\n", ""), "name is missing; write name: captain"),
        (3, WHOLE.replace("  contains_any: [please]", "  {}"), "rule: a rule needs a condition"),
        (
            4,
            WHOLE.replace("[please]", "please"),
            "rule.contains_any: 'please' is not a list; write for example contains",
        ),
        (
            4,
            WHOLE.replace("contains_any: [please]", "contain_any: [please]"),
            "rule.contain_any is not a known key; did",
        ),
        (4, WHOLE.replace("contains_any: [please]", "min_words: 0"), "rule.min_words: 0: "),
        (
            4,
            WHOLE.replace("contains_any: [please]", "min_words: '20'"),
            "'20' is not a whole number; write for example min_w",
        ),
        (4, WHOLE.replace("contains_any: [please]", "min_words: yes"), "rule.min_words: True is not a whole number"),
        (3, WHOLE.replace("contains_any: [please]", "must_match: ['(']"), "'(' is not a regular expression"),
        (3, WHOLE.replace("contains_any: [please]", "call: nothing.py:f"), "nothing.py does not exist"),
        (3, WHOLE.replace("contains_any: [please]", "call: math.pi"), "names no function; write module:function"),
        (3, WHOLE.replace("contains_any: [please]", "call: 'math:pi'"), "math.pi is not a function"),
        (
            3,
            WHOLE.replace("contains_any: [please]", "{min_words: 9, max_words: 3}"),
            "min_words 9 is above max_words 3",
        ),
        (5, WHOLE.replace("  - Say please.\n", "  - 5\n"), "5 is not a phrase"),
        (5, WHOLE.replace("complaints:\n  - Say please.", "complaints: []"), "complaints: is not a list of phrases"),
        (9, WHOLE + "turns: 1\n", "turns: 1: "),
        (9, WHOLE + "seeds: [1, 1]\n", "seeds: [1, 1] repeats a seed"),
        (9, WHOLE + "temperature: 3\n", "temperature: 3: "),
        (9, WHOLE + "opening: Please help\n", "opening: does not have {question}"),
        (9, WHOLE + "opening: '{question} {name}'\n", "opening: has {name}, but only {question} and {answer}"),
        (9, WHOLE + "wish: another\n", "wish is there twice; leave one"),
        (9, WHOLE + "mood: bad\n", "mood is not a known key; known keys: name, wish"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(line: int, wrong: str, said: str, tmp_path: Path) -> None:
    told = refusal(tmp_path, wrong)
    assert f"user.yaml:{line}: " in told, told
    assert said in told


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    told = refusal(tmp_path, WHOLE.replace("polite", "P") + "turns: 1\nmood: bad\n").splitlines()
    assert [line.split(": ")[1].split(" ")[0] for line in told] == ["name", "turns", "mood"]


def test_no_yaml_and_no_file(tmp_path: Path) -> None:
    assert "user.yaml:2: is not YAML" in refusal(tmp_path, "a: [\nb: }")
    assert "is not a mapping" in refusal(tmp_path, "- polite")
    assert "user.yaml:1: is not YAML" in refusal(tmp_path, "? [a]\n: b")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(UserFileError, match="save it as UTF-8"):
        find_user(str(tmp_path / "latin.yaml"))
    with pytest.raises(UserFileError, match="No such file"):
        find_user(str(tmp_path / "missing.yaml"))
    with pytest.raises(UserFileError, match="there is no user captian; did you mean captain"):
        find_user("captian")


def test_two_users_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE.replace("polite", "captain"))
    with pytest.raises(UserFileError, match="two users have the name captain"):
        find_users(["captain", str(path)])


def test_every_key_has_an_example_that_is_accepted(tmp_path: Path) -> None:
    keys = [key for key in User.model_fields if key != "rule"]
    assert set(EXAMPLES) == {*keys, "rule", *(f"rule.{key}" for key in Rule.model_fields)}
    (tmp_path / "my_rules.py").write_text("def is_polite(reply):\n    return 'please' in reply\n")
    for path, example in EXAMPLES.items():
        key = path.rpartition(".")[2]
        lines = WHOLE.splitlines()
        if path.startswith("rule."):
            text = "\n".join([*lines[:3], f"  {example}", *lines[4:]])
        else:
            start = next((at for at, line in enumerate(lines) if line.startswith(f"{key}:")), len(lines))
            end = next((at for at in range(start + 1, len(lines)) if not lines[at].startswith(" ")), len(lines))
            text = "\n".join([*lines[:start], example, *lines[end:]])
        read_user(written(tmp_path, text))


def test_every_condition_must_hold(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def no_digits(reply):\n    return not any(each.isdigit() for each in reply)\n")
    text = """\
        name: all
        wish: everything
        rule:
          must_match: ['^Dear', 'you']
          must_not_match: ['\\*\\*', 'boss']
          contains_any: [Well Done, excellent]
          min_words: 4
          max_words: 8
          min_tokens: 6
          max_tokens: 9
          call: own.py:no_digits
        complaints: [No.]
        thanks: [Yes.]
        """
    user = read_user(written(tmp_path, text))
    assert user.likes("Dear Ann, WELL done, you rock")
    for broken in (
        "To Ann, well done, you rock",
        "Dear Ann, well done, we rock",
        "Dear Ann, **well done**, you",
        "Dear boss, well done, you rock",
        "Dear Ann, fine work, you rock",
        "Dear! excellent, you!!",
        "Dear Ann, well done, you rock as it is",
        "Dear Ann well done you",
        "Dear Ann, well done, you rock!!",
        "Dear Ann, well done, you 2 rock",
    ):
        assert not user.likes(broken), broken


@pytest.mark.parametrize(
    ("rule", "least", "one_less", "most", "one_more"),
    [
        ({"min_words": 3, "max_words": 5}, "a, b, c", "a, b!!!", "a b c, d e", "a b c d e f"),
        ({"min_tokens": 3, "max_tokens": 5}, "a b!", "ab!", "a, b, c", "a, b, c!"),
    ],
)
def test_bounds_are_included(rule: dict[str, int], least: str, one_less: str, most: str, one_more: str) -> None:
    found = Rule.model_validate(rule)
    assert [found.likes(reply) for reply in (least, one_less, most, one_more)] == [True, False, True, False]


def test_a_hint_follows_each_complaint(tmp_path: Path) -> None:
    user = read_user(written(tmp_path, WHOLE + "hints: [Be kind.]\n"))
    assert user.complain(random.Random(0)) == "Say please. Be kind."
    assert user.approve(random.Random(0), None) == "Thanks."


def test_rules_pull_in_different_directions() -> None:
    rng = random.Random(4)
    replies = [write(rng, draw(rng), draw_style(rng)) for _ in range(600)]
    plain, boxed, listed, length = (find_user(name) for name in ("plain", "boxed", "list", "length"))
    for reply in replies:
        assert plain.likes(reply) == follows_rule(reply), "the same taste as the student's, written as patterns"
        assert not (plain.likes(reply) and (boxed.likes(reply) or listed.likes(reply)))
    shares = [sum(map(user.likes, replies)) / len(replies) for user in (plain, boxed, listed, length)]
    assert all(0.1 < share < 0.4 for share in shares), shares
    assert not any(map(find_user("praise").likes, replies))
