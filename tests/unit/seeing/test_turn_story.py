"""The story of a turn says everything about it, with the advantages that the trainer computes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from openclaw.config.runtime import RuntimeConfig
from openclaw.inspect import main
from openclaw.ledger.records import BASELINE, Vote
from openclaw.ledger.views import SampleRecord
from openclaw.runs.reasons import REASONS
from openclaw.runs.turn_story import advantages_of, coloured, run_tokenizer, token_texts
from openclaw.runtime.start import write_settings
from openclaw.runtime.where import SETTINGS_NAME
from slime.algorithms.advantages import compute_advantages
from slime.args import Arguments
from tests.helpers.made_runs import MadeRun

COMBINE = {
    "advantage_estimator": "grpo",
    "rewards_normalization": False,
    "use_opd": True,
    "opd_kl_coef": 2.0,
    "opd_clip": 0.5,
}
TEACHER = (-0.2, -3.0, -0.1)


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run", **COMBINE)


def taught(run: MadeRun) -> str:
    """Record a turn with a verdict of -1, a hint and a teacher, after three that were liked."""
    for _ in range(3):
        run.talk(1)
    turn_id = run.react(run.turn(session_id="work"))
    votes = [
        Vote("prm", "bold again \\boxed{-1}", -1),
        Vote("prm", "", None, invalid="cut_off"),
        Vote("hint", "plain", 1),
    ]
    return run.judge(
        turn_id, -1, votes=votes, hint="Write plain prose.", teacher_log_probs=TEACHER, teacher_untaught={"control": 1}
    )


def story(run: MadeRun, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(run.folder), *options]) == 0
    return capsys.readouterr().out


def test_all_about_a_trained_turn(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    taught(run)
    run.step()
    run.close()
    text = story(run, "--turn", "turn-3", "--tokens", capsys=capsys)
    for part in (
        "session work  #0  main",
        "    What is 2 + 3?",
        "reply (3 tokens, stop, temperature 0.6, version 0):",
        "    The sum is **5**.",
        "    No bold please, write it again.",
        "verdict: -1, by judge, in 1.5 s",
        "  prm vote -1 (0.0 s): bold again \\boxed{-1}",
        "  prm vote cut_off (0.0 s): ",
        "  hint vote +1",
        "    Write plain prose.",
        "teacher: log-probability against the reply's own",
        "  without the teacher's number: 1 of 3 tokens (control 1); their term is 0",
        "The run did not record its variables",
        "outcome: Step 0 used sample 4; its weights are live as version 1 since ",
        "and a checkpoint holds it.",
    ):
        assert part in text, part
    assert "\x1b" not in text


def test_the_advantages_are_the_trainers(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    taught(run)
    run.close()
    sample = run_sample(run, "turn-3")
    reward = -1.0 - sample.sample.metadata[BASELINE]
    assert sample.sample.metadata[BASELINE] > 0
    logprobs = torch.tensor(sample.sample.rollout_log_probs)
    batch = {
        "rewards": [reward],
        "response_lengths": [3],
        "loss_masks": [torch.ones(3)],
        "log_probs": [logprobs],
        "rollout_log_probs": [logprobs],
        "teacher_log_probs": [torch.tensor(TEACHER)],
    }
    [expected], _ = compute_advantages(Arguments.of(COMBINE), batch)
    by_hand = [reward + 2.0 * max(-0.5, min(0.5, t - old)) for t, old in zip(TEACHER, logprobs.tolist(), strict=True)]
    assert expected.tolist() == pytest.approx(by_hand, abs=1e-6)
    found = advantages_of(sample, Arguments.of(COMBINE), {})
    assert found.values == tuple(expected.tolist())
    assert found.missing == ()
    rows = re.findall(
        r"^ +(\d+) +(\S+) +(\S+) +(\S+)  (.*)$", story(run, "--turn", "turn-3", "--tokens", capsys=capsys), re.MULTILINE
    )
    assert [row[0] for row in rows] == ["5", "6", "7"]
    assert [float(row[3]) for row in rows] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [row[4] for row in rows] == ["'<5>'", "'<6>'", "'<7>'"], "without a tokenizer a token is its id"


def run_sample(run: MadeRun, turn_id: str) -> SampleRecord:
    from openclaw.ledger.store import Ledger

    return Ledger(run.folder / "ledger.sqlite").views.sample_records(turn_id)[0]


def test_without_a_baseline_nothing_is_subtracted(run: MadeRun) -> None:
    taught(run)
    run.close()
    found = advantages_of(run_sample(run, "turn-3"), Arguments.of(COMBINE), {"OPENCLAW_BASELINE": "False"})
    assert (found.baseline, found.reward) == (None, -1.0)


@pytest.mark.parametrize(
    ("changes", "words", "known"),
    [
        ({"normalize_advantages": True}, "whole batch", True),
        ({"kl_coef": 0.1}, "reference model", True),
        ({"loss_type": "custom_loss", "custom_loss_function_path": "mine.loss"}, "mine.loss adds terms", True),
        ({"stale_samples": "mask", "max_weight_staleness": 1}, "too old at the step", True),
        ({"advantage_estimator": "ppo"}, "--advantage-estimator ppo reads", False),
        ({"custom_advantage_function_path": "mine.advantages"}, "mine.advantages reads", False),
    ],
)
def test_what_cannot_be_known_is_said(run: MadeRun, changes: dict[str, object], words: str, known: bool) -> None:
    taught(run)
    run.close()
    found = advantages_of(run_sample(run, "turn-3"), Arguments.of({**COMBINE, **changes}), {})
    assert words in " ".join(found.missing)
    assert (found.values is not None) == known


def test_the_runtime_records_its_variables_without_secrets(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    taught(run)
    environment = {"OPENCLAW_BASELINE": "0", "SGLANG_API_KEY": "sk-very-secret", "PRM_M": "3"}
    write_settings(run.folder, RuntimeConfig.from_env(environment))
    path = run.folder / SETTINGS_NAME
    assert json.loads(path.read_text()) == {"OPENCLAW_BASELINE": "False", "PRM_M": "3"}
    assert path.stat().st_mode & 0o777 == 0o600
    run.close()
    text = story(run, "--turn", "turn-3", capsys=capsys)
    assert "did not record" not in text
    assert "reward -1.000 = -1.000" in text


def test_why_a_turn_was_not_trained(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.turn(kind="side")
    run.turn()
    run.react(run.turn())
    run.ledger.judging.postpone(run.react(run.turn()), "connection \x1b[2Jrefused", run.now)
    run.talk(0)
    run.talk(1)
    run.ledger.samples.drop(run.ledger.views.sample_records(run.talk(-1))[0].id, "stale", 0)
    run.close()
    expected = [
        f"Not trained (side). {REASONS['side'].sentence}",
        "It waits for its next state",
        "It waits for the judge.",
        "Not judged after 1 attempts; the last failed with connection [2Jrefused",
        f"Not trained (score_zero). {REASONS['score_zero'].sentence}",
        "It waits for its batch",
        f"Not trained (stale). {REASONS['stale'].sentence}",
    ]
    for number, words in enumerate(expected):
        assert f"outcome: {words}" in story(run, "--turn", f"turn-{number}", capsys=capsys)


def test_a_turn_is_named_by_its_begin_or_its_place(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    taught(run)
    run.close()
    whole = story(run, "--turn", "turn-3", capsys=capsys)
    assert story(run, "--turn", "work#0", capsys=capsys) == whole
    assert "  turn-3  " in story(run, "--turns", capsys=capsys)
    for name, words in {
        "turn-": "4 turns begin with 'turn-'",
        "nobody": "no turn 'nobody'; --turns lists them",
        "work#7": "session 'work' has no turn 7",
    }.items():
        assert main([str(run.folder), "--turn", name]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(run.folder), "--tokens"])
    assert "--tokens goes with --turn or --episode" in capsys.readouterr().err


def test_colour_is_the_sign_and_size_of_the_advantage() -> None:
    text = coloured(["a", "b\n", "c", "d"], [1.0, -0.5, 0.0, 9.0], [1, 1, 1, 0])
    assert text.plain == "  ab⏎\n  cd"
    full, half, masked = text.spans
    assert full.style.bgcolor.triplet == (0, 255, 0)
    assert half.style.bgcolor.triplet == (155, 0, 0)
    assert masked.style.dim
    assert not any(span.start <= text.plain.index("c") < span.end for span in text.spans)


def test_tokens_are_the_texts_of_their_ids(repository: Path) -> None:
    folder = repository / "lab" / "tiny_models" / "shipped"
    tokenizer = run_tokenizer(Arguments.of({"hf_checkpoint": str(folder)}))
    ids = tokenizer.encode("The sum is 5.")
    assert "".join(token_texts(tokenizer, ids)) == "The sum is 5."
    assert run_tokenizer(Arguments.of({"hf_checkpoint": "/no/such/folder"})) is None
    assert run_tokenizer(Arguments.of({"hf_checkpoint": str(repository)})) is None, "a folder without a tokenizer"
    assert token_texts(None, [7]) == ["<7>"]


def test_a_conversation_cannot_control_the_terminal(run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[31mred\u202egnp.exe"
    run.judge(
        run.react(
            run.turn(
                messages=[{"role": "user\x1b[1m", "content": evil}],
                response_message={"role": "assistant", "content": evil},
            ),
            [{"role": "user", "content": evil}],
        ),
        -1,
        votes=[Vote("prm", evil, -1)],
        hint=evil,
    )
    run.close()
    for view in (["--turn", "turn-0", "--tokens"], ["--session", "session-0"], ["--turns"]):
        text = story(run, *view, capsys=capsys)
        assert not set("\x1b\x07\u202e") & set(text), view


def test_colours_follow_the_terminal(
    run: MadeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(run)
    run.close()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in story(run, "--turn", "turn-3", capsys=capsys)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;" not in (plain := story(run, "--turn", "turn-3", capsys=capsys))
    assert ";41m" not in plain
