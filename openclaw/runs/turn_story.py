"""The whole story of one turn, as lines for a terminal: what was asked, judged, computed and trained, or why not.

Guarantees: text of a conversation cannot control the terminal. Colour shows the advantage of each token, green above 0 and
red below; rich leaves it out where there is no terminal, and with ``NO_COLOR``.

The advantage of each token of a sample is computed by the trainer's own functions from what the ledger stores, with the same code as
a step: `openclaw.training.rollout.prepare`, `slime.rollout.rewards.post_process_rewards` and
`slime.algorithms.advantages.compute_advantages`, with the arguments that the run recorded. Where a step also reads what
nobody stores (the rest of its batch, a reference model, a critic), `Advantages.missing` says what is left out.
The tokens of a reply are decoded from its stored ids, each by itself. Nothing is tokenised.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.style import Style
from rich.text import Text

from groundwork.command_line import named_by_beginning
from groundwork.processors import load_tokenizer
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import BASELINE, Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import SampleRecord, TurnRecord
from openclaw.messages.preview import harmless, preview, shown_time
from openclaw.messages.text import next_state_text, response_text
from openclaw.runs.folder import RunFolder
from openclaw.runs.outcome import outcome
from openclaw.training.rollout import compares_rewards, prepare
from slime.algorithms.advantages import compute_advantages
from slime.args import Arguments
from slime.rollout.rewards import post_process_rewards

ANSWER = 400
"""Longest part of a judge's answer that is shown."""
NEWLINE = "⏎"
MASKED = Style(dim=True)


def meant_turn(ledger: Ledger, named: str) -> str:
    """Return the turn that a person names: its id, the beginning of it, or ``SESSION#INDEX``.

    Raises:
        UnknownRecordError: there is none, or more than one.
    """
    session, mark, index = named.rpartition("#")
    if mark and index.isdigit():
        turn = ledger.views.turn_at(session, int(index))
        if turn is None:
            raise UnknownRecordError(f"session {session!r} has no turn {index}; --turns lists them")
        return turn
    try:
        return named_by_beginning(named, ledger.views.turn_ids(named), "turn", "--turns lists them")
    except LookupError as error:
        raise UnknownRecordError(str(error)) from error


def turn_story(run: RunFolder, ledger: Ledger, named: str, *, tokens: bool) -> Iterator[Text]:
    """Yield the story of a turn; ``tokens`` adds a line per token with its numbers."""
    record = ledger.views.turn_record(meant_turn(ledger, named))
    turn = record.turn
    yield _line(f"turn {turn.id}", "bold")
    yield _line(f"  session {turn.session_id}  #{turn.index}  {turn.kind}  {shown_time(turn.created_at)}")
    yield from _conversation(turn)
    yield from _verdict(record)
    tokenizer = run_tokenizer(run.trainer_arguments())
    for sample in record.samples:
        yield from _sample(run, sample, tokenizer, tokens=tokens)
    if not record.samples and tokens:
        texts = token_texts(tokenizer, turn.response_ids)
        yield _line("tokens (id, log-probability, text):")
        for number, value, text in zip(turn.response_ids, turn.response_logprobs, texts, strict=False):
            yield _line(f"  {number:8} {value:+9.4f}  {text!r}")
    yield _line(f"outcome: {outcome(record)}", "bold")


def _conversation(turn: Turn) -> Iterator[Text]:
    for message in turn.messages:
        yield from _block(f"{message.get('role', 'user')}:", response_text(message))
    spans = ", ".join(f"version {span.version}" for span in turn.weight_versions) or "unknown weights"
    yield from _block(
        f"reply ({len(turn.response_ids)} tokens, {turn.finish_reason}, temperature {turn.temperature:g}, {spans}):",
        response_text(turn.response_message),
    )
    if turn.next_state:
        yield from _block(f"next state ({shown_time(turn.next_state_at)}):", next_state_text(turn.next_state))


def _verdict(record: TurnRecord) -> Iterator[Text]:
    verdict = record.verdict
    if verdict is None:
        yield _line("verdict: none")
        return
    score = "no score" if verdict.score is None else f"{verdict.score:+d}, by {verdict.score_source}"
    yield _line(f"verdict: {score}, in {verdict.seconds:.1f} s")
    for vote in verdict.votes:
        value = vote.invalid or ("-" if vote.value is None else f"{vote.value:+d}")
        yield _line(f"  {vote.judge} vote {value} ({vote.seconds:.1f} s): {preview(harmless(vote.answer), ANSWER)}")
    if verdict.hint:
        yield from _block("  hint:", verdict.hint)
    yield from _teacher(record.turn, verdict)


def _teacher(turn: Turn, verdict: Verdict) -> Iterator[Text]:
    taught = verdict.teacher_log_probs
    if taught is None or len(taught) != len(turn.response_logprobs):
        return
    gaps = [own - old for own, old in zip(taught, turn.response_logprobs, strict=True)]
    versions = f", version {', '.join(verdict.teacher_versions)}" if verdict.teacher_versions else ""
    yield _line(
        f"teacher{versions}: log-probability against the reply's own {statistics.fmean(gaps):+.3f} per token, "
        f"from {min(gaps):+.2f} to {max(gaps):+.2f}"
    )
    if verdict.teacher_untaught:
        reasons = ", ".join(f"{reason} {count}" for reason, count in verdict.teacher_untaught.items())
        missing = sum(verdict.teacher_untaught.values())
        yield _line(f"  without the teacher's number: {missing} of {len(taught)} tokens ({reasons}); their term is 0")


def _sample(run: RunFolder, record: SampleRecord, tokenizer: object, *, tokens: bool) -> Iterator[Text]:
    sample = record.sample
    given = sample.reward
    advantages = advantages_of(record, run.trainer_arguments(), run.settings)
    against = "" if advantages.baseline is None else f", minus the baseline {advantages.baseline:+.3f}"
    dropped = f" ({record.reason})" if record.reason else ""
    yield _line(f"sample {record.id}: {record.state}{dropped}, reward {given:+.3f}{against} = {advantages.reward:+.3f}")
    for sentence in advantages.missing:
        yield _line(f"  {sentence}")
    if advantages.values is None:
        return
    trained = [value for value, kept in zip(advantages.values, _mask(record), strict=True) if kept]
    if trained:
        yield _line(
            f"  advantage of {len(trained)} tokens: mean {statistics.fmean(trained):+.3f}, "
            f"from {min(trained):+.3f} to {max(trained):+.3f}"
        )
    ids = sample.tokens[len(sample.tokens) - sample.response_length :]
    texts = token_texts(tokenizer, ids)
    yield coloured(texts, advantages.values, _mask(record))
    if tokens:
        yield from _table(record, ids, texts, advantages)


def _mask(record: SampleRecord) -> list[int]:
    return record.sample.loss_mask or [1] * record.sample.response_length


def _table(record: SampleRecord, ids: Sequence[int], texts: Sequence[str], found: Advantages) -> Iterator[Text]:
    sample = record.sample
    own = sample.rollout_log_probs or [float("nan")] * len(ids)
    teacher = sample.teacher_log_probs or [float("nan")] * len(ids)
    yield _line(f"  {'id':>8} {'logprob':>9} {'teacher':>9} {'advantage':>9}  text")
    columns = zip(ids, own, teacher, found.values or (), _mask(record), texts, strict=True)
    for number, logprob, taught, value, kept, text in columns:
        shown = f"{value:+9.4f}" if kept else "   masked"
        yield _line(f"  {number:8} {logprob:+9.4f} {taught:+9.4f} {shown}  {text!r}")


def coloured(texts: Sequence[str], values: Sequence[float], mask: Sequence[int]) -> Text:
    """Return the tokens on a background of their advantages: the largest in full green or red, 0 in none."""
    largest = max((abs(value) for value, kept in zip(values, mask, strict=True) if kept), default=0.0) or 1.0
    result = Text("  ")
    for text, value, kept in zip(texts, values, mask, strict=True):
        shown = harmless(text.replace("\n", f"{NEWLINE}\n  "))
        result.append(shown, _style(value / largest) if kept else MASKED)
    return result


def _style(share: float) -> Style:
    """Return the style of an advantage from -1 to 1."""
    strength = round(200 * abs(share))
    if not strength:
        return Style()
    colour = f"rgb(0,{55 + strength},0)" if share > 0 else f"rgb({55 + strength},0,0)"
    return Style(color="black" if strength > 120 else "white", bgcolor=colour)


def _line(text: str, style: str = "") -> Text:
    return Text(harmless(text), style)


def _block(title: str, text: str) -> Iterator[Text]:
    yield _line(title, "bold")
    for line in text.splitlines() or [""]:
        yield _line(f"    {line}")


NEEDS_OTHERS = ("ppo", "step_wise")
"""Estimators that read what no ledger stores."""


@dataclass(frozen=True)
class Advantages:
    """The advantages of a sample.

    Attributes:
        values: one per response token; None if they cannot be known.
        reward: what the trainer got, with the baseline subtracted.
        baseline: what was subtracted; None if nothing was.
        missing: what the step adds that is not in ``values``, one sentence each.
    """

    values: tuple[float, ...] | None
    reward: float
    baseline: float | None
    missing: tuple[str, ...]


def advantages_of(record: SampleRecord, args: Arguments, settings: Mapping[str, str] | None) -> Advantages:
    """Return the advantages of a stored sample.

    Args:
        record: of the ledger; its sample is changed as a step changes it.
        args: of the trainer, as the run recorded them.
        settings: the runtime's variables, as the run recorded them; None if it did not.
    """
    sample = record.sample
    missing: list[str] = []
    if settings is None:
        missing.append("The run did not record its variables; this assumes the defaults, such as OPENCLAW_BASELINE=1.")
    compares = compares_rewards(settings or {})
    baseline = float(sample.metadata[BASELINE]) if compares and BASELINE in sample.metadata else None
    prepare(sample, None, compares)
    _, [reward] = post_process_rewards(args, [sample])
    if args.custom_advantage_function_path or args.advantage_estimator in NEEDS_OTHERS:
        what = args.custom_advantage_function_path or f"--advantage-estimator {args.advantage_estimator}"
        missing.append(f"{what} reads what the ledger does not store, so the advantages of its tokens are unknown.")
        return Advantages(None, reward, baseline, tuple(missing))
    missing += left_out(args)
    sampled = torch.tensor(sample.rollout_log_probs or [0.0] * sample.response_length, dtype=torch.float32)
    teacher = sample.teacher_log_probs
    rollout = {
        "rewards": [reward],
        "response_lengths": [sample.response_length],
        "loss_masks": [torch.tensor(sample.loss_mask or [1] * sample.response_length, dtype=torch.float32)],
        "rollout_log_probs": [sampled],
        "log_probs": [sampled],
        "teacher_log_probs": None if teacher is None else [torch.tensor(teacher, dtype=torch.float32)],
    }
    if teacher is None and args.advantage_estimator == "on_policy_distillation":
        missing.append("The sample has no teacher's log-probabilities for each token, so its advantages are unknown.")
        return Advantages(None, reward, baseline, tuple(missing))
    [values], _ = compute_advantages(args.changed(kl_coef=0.0, normalize_advantages=False), rollout)
    return Advantages(tuple(values.tolist()), reward, baseline, tuple(missing))


def left_out(args: Arguments) -> list[str]:
    """Return what a step with these arguments adds to the advantages, or changes, beyond one sample."""
    results: list[str] = []
    if args.normalize_advantages:
        results.append("--normalize-advantages then scales them by the mean and deviation of the whole batch.")
    if args.kl_coef:
        results.append("--kl-coef subtracts the distance to the reference model, which is not stored.")
    if args.custom_loss_function_path and args.loss_type == "custom_loss":
        results.append(f"The loss {args.custom_loss_function_path} adds terms of its own to them.")
    if args.stale_samples == "mask" and args.max_weight_staleness is not None:
        results.append("--stale-samples mask left out tokens whose weights were too old at the step.")
    return results


def run_tokenizer(args: Arguments) -> Any | None:
    """Return the tokenizer of the run's checkpoint if its folder is on this machine, otherwise None."""
    folder = args.hf_checkpoint
    if not folder or not Path(folder).is_dir():
        return None
    try:
        return load_tokenizer(folder)
    except (OSError, ValueError):
        return None


def token_texts(tokenizer: Any | None, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, or its id in angle brackets without a tokenizer."""
    if tokenizer is None:
        return [f"<{number}>" for number in ids]
    return [tokenizer.decode([number], skip_special_tokens=False) for number in ids]
