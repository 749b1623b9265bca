"""A lesson: its states, which text may be one, when two say the same, and which of them a request carries.

Guarantees: a lesson is one line of at most `MAX_CHARACTERS` characters of plain words: no link, path, code, markup, name
of a tool, control token or secret (`usable_lesson`). A request carries at most `MAX_SERVED` lessons, fewer if the run says so,
of at most `MAX_TOKENS` tokens in all (`chosen`). A lesson moves between states only as `LESSON_MOVES` says; the ledger's triggers
enforce the resulting table. Pure functions.

States: a lesson of the judge is ``proposed`` until its person accepts it, or on ``trial`` at once, as the person's mode
says. The first liked reply under it makes it ``active``. Both are served. It is ``resting`` while its person has switched it
off (reason ``off``), a newer lesson replaces it (``replaced``), or the weights satisfy it without it (``learned``). It is ``retired`` when its person declined it
(``declined``), when `ENOUGH_DISLIKES` replies under it were disliked and none was liked (``no_effect``), when no request
carried it for `UNUSED_DAYS` (``unused``), when its person has more than `MAX_KEPT` (``crowded``), or when its complaint was
judged again and held no wish (``withdrawn``). A lesson that its person switched off keeps this reason when it retires.

A person is `openclaw.owners.root` of an owner: a key and its children are one person.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

LessonState = Literal["proposed", "trial", "active", "resting", "retired"]
LessonReason = Literal["off", "replaced", "learned", "declined", "no_effect", "unused", "crowded", "withdrawn"]
UNWANTED: frozenset[LessonReason | None] = frozenset({"off", "declined", "no_effect"})
"""Reasons for which no further complaint brings a lesson back."""
Origin = Literal["judge", "owner"]
Mode = Literal["auto", "confirm", "off"]
"""What a person wants: lessons from complaints at once, only those that the person accepts, or none."""
MODES: tuple[Mode, ...] = ("auto", "confirm", "off")

UNDER_LESSON = "under_lesson"
"""Why a judged turn gives no sample: its prompt had lessons, so its tokens came from another policy."""
SERVED_STATES: tuple[LessonState, ...] = ("trial", "active")
FIRST_LESSON_STATES: frozenset[str] = frozenset({"proposed", "trial"})

MIN_CHARACTERS = 3
MAX_CHARACTERS = 240
MAX_SERVED = 6
MAX_TOKENS = 400
CONTEXT_SHARE = 0.05
"""The most of the context that the lessons of a request may take."""
MAX_KEPT = 64
"""Most lessons of a person that are not retired; of the retired ones as many are kept to be listed."""
ENOUGH_DISLIKES = 3
CONFIRMED_LIKES = 10
"""Liked replies without a learned lesson, and none disliked, that confirm that the weights satisfy it."""
UNUSED_DAYS = 90
QUOTE = "The user said: "
"""How a lesson begins that quotes its person."""
ALIKE = 0.6
"""Least Jaccard index of the words of two lessons that are about the same."""


class LessonMove(NamedTuple):
    """One way to change a lesson's state: from which states, to which, and the reason that it then has.

    A target of None is `SERVED_STATES` by evidence: ``active`` with a like, else ``trial``. ``pinned`` lessons move only if
    their person says so.
    """

    sources: tuple[LessonState, ...]
    target: LessonState | None
    reason: LessonReason | None = None
    moves_pinned: bool = True


LESSON_MOVES: Mapping[str, LessonMove] = {
    "accept": LessonMove(("proposed",), "trial"),
    "decline": LessonMove(("proposed",), "retired", "declined"),
    "like": LessonMove(("trial",), "active"),
    "give_up": LessonMove(("trial",), "retired", "no_effect", moves_pinned=False),
    "learn": LessonMove(("active",), "resting", "learned", moves_pinned=False),
    "replace": LessonMove(("trial", "active"), "resting", "replaced"),
    "return": LessonMove(("resting",), None),
    "switch_off": LessonMove(("trial", "active"), "resting", "off"),
    "off_at_rest": LessonMove(("resting",), "resting", "off"),
    "replaced_at_rest": LessonMove(("resting",), "resting", "replaced"),
    "switch_on": LessonMove(("resting", "retired"), None),
    "propose": LessonMove(("resting", "retired"), "proposed"),
    "withdraw": LessonMove(("proposed", "trial", "active", "resting"), "retired", "withdrawn", moves_pinned=False),
    "age": LessonMove(("proposed", "trial", "active", "resting"), "retired", "unused", moves_pinned=False),
    "crowd_out": LessonMove(("proposed", "trial", "active", "resting"), "retired", "crowded", moves_pinned=False),
}


def lesson_transitions() -> dict[str, frozenset[str]]:
    """Return the states that may follow each state."""
    following: dict[str, set[str]] = {state: set() for state in ("proposed", "trial", "active", "resting", "retired")}
    for move in LESSON_MOVES.values():
        for source in move.sources:
            following[source] |= {*SERVED_STATES} if move.target is None else {move.target}
    return {state: frozenset(targets) for state, targets in following.items()}


VALID_LESSON_TRANSITIONS: Mapping[str, frozenset[str]] = lesson_transitions()


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How replies of the weights without a lesson compare with replies of a policy that reads it (`openclaw.judge.measure`).

    Attributes:
        weight_version: of the update that was measured.
        at: when, seconds since the epoch.
        scorer: ``judge``: scores are the share of replies that obey; ``base``: they are the mean nats by which the base model
            finds a reply likelier if it reads the lesson.
        prompts: of the person, with as many replies of both kinds.
        practised: those of them that practice used.
        plain: mean score of the replies without the lesson.
        taught: mean score of the replies with it.
        error: standard error of the difference over prompts.
        taught_error: standard error of ``taught``.
    """

    weight_version: str
    at: float
    scorer: Literal["judge", "base"]
    prompts: int
    practised: int
    plain: float
    taught: float
    error: float
    taught_error: float

    def __str__(self) -> str:
        return (
            f"version {self.weight_version} scores {self.plain:.2f} without it, {self.taught:.2f} with it, "
            f"+-{self.error:.2f} ({self.scorer}, {self.prompts} prompts)"
        )

    @property
    def shows(self) -> bool:
        """Whether the lesson shows in the replies that read it, so that a comparison says anything."""
        return self.taught > (0.5 if self.scorer == "judge" else 2 * self.taught_error)

    @property
    def satisfied(self) -> bool:
        """Whether the weights satisfy the lesson: within one standard error, and at least half as well."""
        return self.shows and self.plain >= self.taught - self.error and self.plain >= self.taught / 2

    @property
    def missed(self) -> bool:
        """Whether they do not: by more than two standard errors, or less than half as well."""
        return self.shows and (self.plain < self.taught - 2 * self.error or self.plain < self.taught / 2)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A lesson with its evidence.

    Attributes:
        id: unique.
        person: whose it is.
        text: what the policy reads.
        origin: who worded it: the judge from a complaint, or its owner.
        state: see the module.
        reason: why it is not served, or None.
        pinned: served before others, and never retired by itself.
        touched: whether its person has accepted, declined, switched, pinned or edited it; then no judge withdraws it.
        replaces: the older lesson that it contradicts, or None.
        created_at: seconds since the epoch.
        changed_at: when its text or state changed, or its complaint was repeated.
        served_at: when a request last carried it, or None.
        said: complaints that it comes from.
        served: replies under it.
        liked: those with a verdict of 1.
        disliked: those with a verdict of -1.
        without: replies without it since it rests as ``learned``.
        liked_without: those with a verdict of 1.
        disliked_without: those with a verdict of -1.
        measure: the newest one, or None.
    """

    id: str
    person: str
    text: str
    origin: Origin
    state: LessonState
    reason: LessonReason | None
    pinned: bool
    touched: bool
    replaces: str | None
    created_at: float
    changed_at: float
    served_at: float | None
    said: int = 0
    served: int = 0
    liked: int = 0
    disliked: int = 0
    without: int = 0
    liked_without: int = 0
    disliked_without: int = 0
    measure: Measure | None = None

    @property
    def is_served(self) -> bool:
        """Whether requests carry it."""
        return self.state in SERVED_STATES

    @property
    def is_learned(self) -> bool:
        """Whether it rests because the weights satisfy it."""
        return self.state == "resting" and self.reason == "learned"

    @property
    def is_wanted(self) -> bool:
        """Whether its person wants it now, and requests carry it or the weights satisfy it."""
        return self.is_served or self.is_learned

    @property
    def is_confirmed(self) -> bool:
        """Whether its person's own turns have confirmed that the weights satisfy it."""
        return self.is_learned and self.liked_without >= CONFIRMED_LIKES and not self.disliked_without


def may_move(lesson: Lesson, move: str) -> bool:
    """Return whether ``move`` applies to a lesson."""
    rule = LESSON_MOVES[move]
    return lesson.state in rule.sources and (rule.moves_pinned or not lesson.pinned)


def moved_to(lesson: Lesson, move: str) -> tuple[LessonState, LessonReason | None]:
    """Return the state and the reason of a lesson after a move that applies."""
    rule = LESSON_MOVES[move]
    stays_off = lesson.reason == "off" and rule.target == "retired"
    return rule.target or ("active" if lesson.liked else "trial"), "off" if stays_off else rule.reason


def measured_move(lesson: Lesson, measure: Measure) -> str | None:
    """Return the move that a measurement calls for, or None."""
    if lesson.is_learned:
        return "return" if measure.missed else None
    return "learn" if measure.satisfied and may_move(lesson, "learn") else None


def judged_move(lesson: Lesson) -> str | None:
    """Return the move that the verdicts on replies under a lesson call for, or None."""
    move = "like" if lesson.liked else "give_up" if lesson.disliked >= ENOUGH_DISLIKES else None
    return move if move is not None and may_move(lesson, move) else None


def is_unused(lesson: Lesson, now: float) -> bool:
    """Return whether no request carried a lesson, and nobody changed it, for `UNUSED_DAYS`; a learned one is in use."""
    return not lesson.is_learned and max(lesson.changed_at, lesson.served_at or 0.0) < now - UNUSED_DAYS * 86400.0


UNUSABLE: Mapping[str, re.Pattern[str]] = {
    "link": re.compile(r"\w+://|\bwww\.|\bmailto:|\bdata:\w|\b[\w-]+\.(?:com|org|net|io|dev|ai|app|xyz|ru|cn)\b", re.I),
    "path": re.compile(r"(?:^|[\s(\"'])(?:~|\.{1,2})?/[\w.-]|\b[a-z]:\\|\\\\\w|[\w-]+/[\w-]+/|\w+\.(?:py|sh|js|exe|json|yaml|toml|md|txt|env)\b", re.I),
    "code": re.compile(r"[`{}<>\[\]|\\]|\$[({A-Z_]|;\s*$|&&|\(\s*\)|\w\((?!(?:e?s|e?n|er?|in|innen)\))|==|=>|\bsudo\b|\brm -|\bcurl\b|\bimport \w+\s*$", re.I),
    "markup": re.compile(r"HINT_(?:START|END)|^\s*#|\*\*|_{2}", re.I),
    "role": re.compile(r"(?:(?:^|[.!?;:。！？；：])\W*|\b(?-i:(?=[A-Z])))(?:system|assistant|user|developer|tool)\s*[:：]|\bim_(?:start|end)\b|\bendoftext\b|\bsystem (?:prompt|message)\b|\btool_call", re.I),
    "override": re.compile(r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:instructions?|rules?|prompts?|guidelines?|polic(?:y|ies)|lessons?)\b", re.I),
    "secret": re.compile(r"\[REDACTED:|\b(?:password|passwd|api[ _-]?key|secret|credential)s?\b", re.I),
}  # fmt: skip
"""What makes a text no lesson, by the reason."""
LONG_WORD = re.compile(r"[A-Za-z0-9+/=_-]{33,}")
PROGRAM_NAME = re.compile(r"\b[A-Za-z]\w*_\w+\b|\b[a-z]+(?:[A-Z][a-z0-9]+){2,}\b")
"""Names with underscores or two humps, as programs have them; iPhone and macOS are ordinary words."""
JOINER = re.compile("[\u200c\u200d]")
"""The zero-width joiners, which Persian and Indic words need."""
INVISIBLE = ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp")


class UnusableLessonError(ValueError):
    """A text cannot be a lesson; ``reason`` says why in one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def usable_lesson(text: str, tools: Collection[str] = (), redacted: Callable[[str], str] = str) -> str:
    """Return a text as a lesson: one line, white space collapsed.

    Args:
        text: what the judge or the owner wrote.
        tools: names of tools, which no lesson may name.
        redacted: replaces secrets in a text.

    Raises:
        UnusableLessonError: if it cannot be one.
    """
    lesson = " ".join(unicodedata.normalize("NFKC", text).split())
    seen = JOINER.sub("", lesson)
    if not MIN_CHARACTERS <= len(lesson) <= MAX_CHARACTERS:
        raise UnusableLessonError(
            "length", f"a lesson has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters, this one {len(lesson)}"
        )
    if any(unicodedata.category(each) in INVISIBLE for each in seen) or not all(
        _joins(lesson, each.start()) for each in JOINER.finditer(lesson)
    ):
        raise UnusableLessonError("control", "a lesson has no control or invisible characters; write plain words")
    found = next((name for name, pattern in UNUSABLE.items() if pattern.search(seen)), None)
    if found is None and (PROGRAM_NAME.search(seen) or LONG_WORD.search(seen)):
        found = "code"
    words = {word.casefold() for word in re.findall(r"[\w.-]+", seen)}
    if found is None and any(name.casefold() in words for name in tools if len(name) > 2):
        found = "tool"
    if found is None and redacted(seen) != seen:
        found = "secret"
    if found is not None:
        raise UnusableLessonError(
            found, f"a lesson has no {found}; say in plain words how replies should be, in one sentence"
        )
    return lesson


def _joins(text: str, place: int) -> bool:
    """Return whether the character at ``place`` stands between letters or marks of a script other than ASCII's."""
    around = text[max(0, place - 1) : place], text[place + 1 : place + 2]
    return all(each and not each.isascii() and unicodedata.category(each)[0] in "LM" for each in around)


WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+(?:['’][^\W_]+)?")
"""A word; a character of a script without spaces counts as one."""
NEGATIONS = frozenset(
    [
        "not",
        "no",
        "never",
        "don't",
        "dont",
        "doesn't",
        "isn't",
        "can't",
        "cannot",
        "won't",
        "without",
        "avoid",
        "stop",
        "skip",
        "only",
        "always",
        "less",
        "fewer",
        "shorter",
        "short",
        "brief",
        "long",
        "longer",
        "more",
        "nicht",
        "kein",
        "keine",
        "nie",
        "ohne",
        "pas",
        "jamais",
        "sans",
        "sin",
        "nunca",
        "不",
        "别",
        "勿",
        "无",
        "没",
        "少",
        "多",
        "短",
        "长",
    ]
)
"""Words that turn a wish round: lessons that differ in them contradict each other."""
FILLERS = frozenset(["please", "kindly", "just", "the", "a", "an", "all", "bitte", "einfach", "请"])
"""Words that add nothing to a wish."""
Relation = Literal["same", "contrary", "other"]


def quotation(words: str) -> str:
    """Return the lesson of a judge that cannot put a complaint into other words: what the person typed, as such."""
    return f"{QUOTE}{words}"


def relation(one: str, other: str) -> Relation:
    """Return whether two lessons say the same, contradict each other, or are about different things.

    They say the same if they have the same words in the same order, but for `FILLERS` and for a part that moved from the end
    to the beginning: "Use metric units, not imperial." in another order is another wish. They contradict each other if they
    have the same words in another order, or if they differ in a negation or a number while one has all topics of the other.
    A different topic is a different wish: "Answer in German." and "Answer in English." are ``other``. The words of a quotation
    alone count, not those that introduce it (`quotation`).
    """
    first, second = _words(one), _words(other)
    if {*first} == {*second}:
        turned = (first[place:] + first[:place] for place in range(max(1, len(first))))
        return "same" if second in turned else "contrary"
    plain, others = {*filter(_is_topic, first)}, {*filter(_is_topic, second)}
    common = plain & others
    if not common or common not in (plain, others) or len(common) < ALIKE * len(plain | others):
        return "other"
    return "other" if {*first} - plain == {*second} - others else "contrary"


def _words(text: str) -> list[str]:
    said = text.removeprefix(QUOTE).casefold().replace("’", "'")
    return [word for word in WORD.findall(said) if word not in FILLERS]


def _is_topic(word: str) -> bool:
    return word not in NEGATIONS and not word.isnumeric() and word not in NUMBERS


NUMBERS = frozenset(
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "half", "once", "twice"]
)


def chosen(
    lessons: Iterable[Lesson], tokens: Callable[[str], int], context: int, most: int = MAX_SERVED
) -> list[Lesson]:
    """Return the lessons that a request carries, in the order of the prompt: the newest last, since it wins.

    Pinned lessons come first, then the newest. One that does not fit any more is left out for a shorter one.

    Args:
        lessons: of one person, in any state, the latest changed last.
        tokens: counts the tokens of a text.
        context: tokens of prompt plus reply.
        most: lessons.
    """
    room = min(MAX_TOKENS, int(CONTEXT_SHARE * context))
    served = [each for each in lessons if each.is_served]
    kept: set[str] = set()
    for lesson in sorted(reversed(served), key=lambda each: not each.pinned):
        if len(kept) >= min(most, MAX_SERVED):
            break
        if (size := tokens(lesson.text) + 1) <= room:  # and a line's end
            room -= size
            kept.add(lesson.id)
    return [each for each in served if each.id in kept]


def as_hint(lessons: Sequence[Lesson]) -> str:
    """Return what stands at the end of the last user message (`openclaw.messages.hints.append_hint`)."""
    return "\n".join(lesson.text for lesson in lessons)
