"""Slime's generate function over a pool in this process and a policy that follows a script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.environment import Task
from agentrl.exceptions import DeadlineError
from agentrl.protocol import LeaseRequest, ResetRequest, StepRequest, StepResult
from agentrl.rollout import generate as loop
from agentrl.rollout import play as playing
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import PATIENT_S, until
from lab.testkit.agent_rollouts import GUESS, talk
from lab.testkit.rollout_engine import rollout_args
from openclaw.ledger.records import Vote
from slime.rollout.engine_access import abort_until_idle
from slime.rollout.generation import GenerateState, generate_and_rm_group
from slime.rollout.rewards import rollout_ids
from slime.rollout.train_data import convert
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, PARAMETERS, Stage, staged

Raise = Callable[..., Any]


@pytest.fixture
def stage(tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> Raise:
    """Return a function that sets up a stage on which a policy plays ``replies``; the last one goes on."""

    def set_up(replies: Sequence[str], *tasks: Task) -> AbstractAsyncContextManager[Stage]:
        environment = talk(*(tasks or (Task("guess", {"steps": 3}),)))
        return staged(environment, replies, tmp_path, tiny_random_model, monkeypatch)

    return set_up


async def test_an_episode_is_one_sample_with_every_sampled_token(stage: Raise) -> None:
    async with stage([f"one{END}", f"two{END}", f"three{END}"]) as on:
        (sample,) = await on.play()
        assert (sample.group_index, sample.index, sample.reward) == (3, 7, 1.0)
        assert sample.status == Sample.Status.COMPLETED
        sampled = [
            token
            for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True)
            if mask
        ]
        assert on.tokenizer.decode(sampled) == f"one{END}two{END}three{END}"
        assert on.tokenizer.decode(sample.tokens) == (
            f"<|im_start|>user\nGuess my number.{END}\n<|im_start|>assistant\none{END}\n"
            f'<|im_start|>user\n1: {{"text": "one"}}{END}\n<|im_start|>assistant\ntwo{END}\n'
            f'<|im_start|>user\n2: {{"text": "two"}}{END}\n<|im_start|>assistant\nthree{END}'
        )
        assert [span[0] for span in sample.weight_spans] == ["1"] * 3
        assert sample.metadata["agent"]["ending"] == "done"
        assert sample.metadata["round_number"] == 3
        assert sample.metadata["step_wise"]["step_scores_with_outcome"] == [1.0] * 3
        assert len({headers["X-SMG-Routing-Key"] for headers in on.policy.headers}) == 1
        data = convert(on.args.changed(advantage_estimator="step_wise"), [sample])
        assert data["rollout_mask_sums"] == [len(sampled)]
        assert data["step_wise_step_token_spans"] == [sample.metadata["step_wise"]["step_token_spans"]]


async def test_a_tool_call_is_stepped_and_a_malformed_one_is_not(stage: Raise) -> None:
    call = '<tool_call>\n{"name": "guess", "arguments": {"number": 7}}\n</tool_call>'
    task = Task("guess", {"steps": 2, "tools": [GUESS]})
    async with stage([f"<tool_call>\n{{{END}", f"{call}{END}", f"{call}{END}"], task) as on:
        (sample,) = await on.play()
        assert on.environment.seen == [{"tool": "guess", "arguments": {"number": 7}}] * 2
        assert sample.metadata["agent"]["malformed"] == 1
        assert '{"error": {"code": "malformed_action"' in sample.response
        assert "malformed" in on.kinds()


async def test_an_action_that_makes_no_sense_is_told(stage: Raise) -> None:
    async with stage([f"nonsense{END}", f"one{END}"]) as on:
        (sample,) = await on.play()
        assert '{"error": {"code": "no_number"' in sample.response
        assert sample.metadata["agent"]["turns"] == 3


async def test_an_aborted_reply_goes_on_under_the_new_weights(stage: Raise) -> None:
    async with stage([f"a long answer{END}"], Task("guess", {"steps": 1})) as on:
        on.policy.cuts = [2]
        (sample,) = await on.play()
        whole = on.tokenizer.encode(f"a long answer{END}", add_special_tokens=False)
        assert sample.tokens[-len(whole) :] == whole
        assert on.policy.requests[1]["input_ids"] == on.policy.requests[0]["input_ids"] + whole[:2]


async def abort(on: Stage, task: asyncio.Task[Any]) -> Any:
    """Abort as slime does at the end of a rollout; return what the generate function returned."""
    state = GenerateState(on.args)
    state.aborted = True
    await abort_until_idle(on.args, task.done)
    state.aborted, on.policy.held = False, False
    return task.result()


async def test_an_aborted_episode_keeps_its_lease_and_goes_on(stage: Raise) -> None:
    async with stage([f"one{END}", f"two and more{END}", f"three{END}"]) as on:
        on.policy.held, on.policy.held_after = True, 1
        first = asyncio.create_task(on.play(partial_rollout=True))
        await until(lambda: on.policy.running)
        sample = await abort(on, first)
        assert (sample.status, sample.reward, sample.response_length) == (Sample.Status.ABORTED, None, 0)
        assert await on.leases() == 1
        on.policy.version = "2"
        restored = Sample.from_dict(sample.to_dict())
        (whole,) = await on.play(restored, partial_rollout=True)
        assert [action["text"] for action in on.environment.seen] == ["one", "two and more", "three"], (
            "nothing ran twice"
        )
        versions = [span[0] for span in whole.weight_spans]
        assert versions == ["1", "1", "2", "2"]
        assert whole.weight_spans[1][2] - whole.weight_spans[1][1] == 1, (
            "one token of the second reply was sampled before"
        )
        assert whole.metadata["agent"] | {"episode": ""} == {
            "episode": "",
            "attempts": 1,
            "resumed": True,
            "malformed": 0,
            "calls": 0,
            "context_cuts": 0,
            "aborts": 1,
            "rendered": 0,
            "judge_skipped": 0,
            "ending": "done",
            "turns": 3,
            "outcome": 1.0,
        }
        masked = await on.play(partial_rollout=True, mask_offpolicy_in_partial_rollout=True)
        assert all(masked[0].loss_mask[start:end] == [1] * (end - start) for _, start, end in masked[0].weight_spans)


@dataclass
class Clock:
    """The clock of episodes, which a test moves on."""

    later: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.later


@pytest.mark.parametrize(("turn_s", "ending"), [(400.0, "done"), (600.0, "seconds")])
async def test_only_the_time_in_which_an_episode_is_played_counts(
    stage: Raise, monkeypatch: pytest.MonkeyPatch, turn_s: float, ending: str
) -> None:
    monkeypatch.setenv("AGENTRL_EPISODE_SECONDS", "1000")
    async with stage([f"one{END}", f"two and more{END}", f"three{END}"]) as on:
        clock = Clock()
        monkeypatch.setattr(playing, "time", clock)
        lease, step = on.pool.lease, on.pool.step

        async def queued(request: LeaseRequest) -> Any:
            clock.later += 5000.0
            return await lease(request)

        async def slow(lease_id: str, request: StepRequest) -> StepResult:
            clock.later += turn_s
            return await step(lease_id, request)

        monkeypatch.setattr(on.pool, "lease", queued)
        monkeypatch.setattr(on.pool, "step", slow)
        on.policy.held, on.policy.held_after = True, 1
        first = asyncio.create_task(on.play(partial_rollout=True))
        await until(lambda: on.policy.running)
        sample = await abort(on, first)
        clock.later += 5000.0
        (whole,) = await on.play(sample, partial_rollout=True)
        assert whole.metadata["agent"]["resumed"] is True
        assert whole.metadata["agent"]["ending"] == ending


async def test_a_parked_episode_is_closed_in_time(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage([f"one{END}"]) as on:
        monkeypatch.setenv("AGENTRL_PARK_SECONDS", "0.01")
        on.policy.held = True
        first = asyncio.create_task(on.play(partial_rollout=True))
        await until(lambda: on.policy.running)
        sample = await abort(on, first)
        suspended = loop.agents_of(on.args).suspended
        await until(lambda: not len(suspended))
        async with asyncio.timeout(20):
            while await on.leases():
                await asyncio.sleep(0.002)
        (again,) = await on.play(sample, partial_rollout=True)
        assert again.metadata["agent"]["resumed"] is False
        assert len(on.environment.seen) == 3


async def test_without_partial_rollout_an_aborted_episode_gives_its_lease_back(stage: Raise) -> None:
    async with stage([f"one{END}"]) as on:
        on.policy.held = True
        task = asyncio.create_task(on.play())
        await until(lambda: on.policy.running)
        sample = await abort(on, task)
        assert (sample.status, sample.reward, await on.leases()) == (Sample.Status.ABORTED, None, 0)


async def test_a_cancelled_episode_gives_its_lease_back(stage: Raise) -> None:
    async with stage([f"one{END}"]) as on:
        on.policy.held = True
        task = asyncio.create_task(on.play())
        await until(lambda: on.policy.running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await on.leases() == 0


async def test_a_lost_episode_is_tried_again_and_never_rewarded(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_TRIES", "2")
    async with stage([f"one{END}"]) as on:
        on.environment.broken = 1
        (sample,) = await on.play()
        assert (sample.reward, sample.metadata["agent"]["attempts"]) == (1.0, 2)
        on.environment.broken = 2
        lost = await on.play()
        assert (lost.status, lost.reward) == (Sample.Status.ABORTED, None)
        assert lost.metadata["agent_lost"] == "infra"
        assert on.kinds() == ["lost"]


async def test_an_environment_that_breaks_midway_is_lost(stage: Raise) -> None:
    async with stage([f"one{END}", f"break{END}"]) as on:
        lost = await on.play()
        assert (lost.status, lost.reward) == (Sample.Status.ABORTED, None)
        assert len(on.policy.requests) == 6, "three attempts of two replies each"


async def test_a_reply_that_is_cut_off_truncates(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_MAX_REPLY_TOKENS", "1")
    async with stage([f"on{END}"]) as on:
        assert len(on.tokenizer.encode(f"on{END}", add_special_tokens=False)) == 2
        (sample,) = await on.play()
        assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.TRUNCATED, 1.0, False)
        told = sample.metadata["agent"]
        assert (told["ending"], told["turns"], told["attempts"]) == ("reply_tokens", 1, 1)


async def test_a_reset_has_a_bound_of_its_own(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    async with stage([f"one{END}"]) as on:
        reset = on.pool.reset

        async def noted(lease_id: str, request: ResetRequest) -> Any:
            asked.append(request.timeout_s)
            return await reset(lease_id, request)

        monkeypatch.setattr(on.pool, "reset", noted)
        monkeypatch.setenv("AGENTRL_STEP_SECONDS", "70")
        await on.play()
        monkeypatch.setenv("AGENTRL_RESET_SECONDS", "700")
        await on.play()
    assert asked == [70.0, 700.0]


@pytest.mark.parametrize("name", ["AGENTRL_REPLY_SECONDS", "SGLANG_REQUEST_TIMEOUT"])
async def test_an_engine_that_gives_no_reply_is_lost(stage: Raise, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "0.1")
    monkeypatch.setenv("AGENTRL_TRIES", "2")
    async with stage([f"one{END}"]) as on:
        on.policy.held = True
        lost = await on.play()
        assert (lost.status, lost.reward, lost.metadata["agent_lost"]) == (Sample.Status.ABORTED, None, "timeout")
        assert len(on.policy.requests) == 2, "each with a lease of its own"
        assert on.policy.running == 0, "the requests were withdrawn"


async def test_a_pool_that_does_not_take_a_lease_back_does_not_hold_the_episode(
    stage: Raise, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENTRL_CLOSE_SECONDS", "0.05")
    async with stage([f"one{END}"]) as on:
        release = on.pool.release
        held: list[str] = []

        async def stuck(lease_id: str) -> None:
            held.append(lease_id)
            await asyncio.Event().wait()

        monkeypatch.setattr(on.pool, "release", stuck)
        async with asyncio.timeout(PATIENT_S):
            (sample,) = await on.play()
        assert sample.reward == 1.0
        assert "was not given back" in caplog.text
        await release(held[0])


async def test_an_environment_says_how_long_a_step_may_take(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    async with stage([f"one{END}"], Task("guess", {"steps": 2, "step_seconds": 700})) as on:
        step = on.pool.step

        async def noted(lease_id: str, request: StepRequest) -> StepResult:
            asked.append(request.timeout_s)
            return await step(lease_id, request)

        monkeypatch.setattr(on.pool, "step", noted)
        await on.play()
    assert asked == [700.0, 700.0]


async def test_a_pool_that_does_not_answer_is_an_infrastructure_failure(
    stage: Raise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_TRIES", "1")

    async def silent(*_: Any) -> Any:
        raise DeadlineError("no answer within 135 s", code="no_answer")

    async with stage([f"one{END}"]) as on:
        monkeypatch.setattr(on.pool, "step", silent)
        lost = await on.play()
        assert (lost.status, lost.reward) == (Sample.Status.ABORTED, None)
        assert lost.metadata["agent_lost"] == "timeout"


async def test_a_task_that_is_too_long_is_truncated_and_not_trained(stage: Raise) -> None:
    async with stage([f"one{END}"], Task("guess", {"steps": 1, "text": "word " * 200})) as on:
        (sample,) = await on.play(rollout_max_context_len=100)
        assert (sample.status, sample.response_length, sample.remove_sample) == (Sample.Status.TRUNCATED, 0, True)
        assert sample.metadata["agent"]["ending"] == "context"
        assert "verdict" not in on.kinds()
        assert on.policy.requests == []
        good = (await on.play(rollout_max_context_len=4000))[0]
        assert convert(on.args, [sample, good])["loss_masks"][0] == []


@pytest.mark.parametrize("policy", ["drop_middle", "elide"])
async def test_a_long_conversation_is_cut_and_its_segments_share_one_denominator(
    stage: Raise, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv("AGENTRL_CONTEXT", policy)
    monkeypatch.setenv("AGENTRL_KEEP_OBSERVATIONS", "1")
    async with stage([f"a reply{END}"], Task("guess", {"steps": 20, "more": "x1 y2 " * 30})) as on:
        samples = await on.play(rollout_max_context_len=900)
        assert len(samples) > 1
        assert all(len(sample.tokens) <= 900 for sample in samples)
        turns = [turn for sample in samples for turn in sample.metadata["step_wise"]["step_indices"]]
        assert turns == list(range(samples[0].metadata["agent"]["turns"]))
        assert len(set(rollout_ids(samples))) == 1
        sums = convert(on.args, samples)["rollout_mask_sums"]
        assert sums == [sum(sum(sample.loss_mask) for sample in samples)] * len(samples)
        cuts = [event for event in on.record().events if event["kind"] == "context"]
        assert len(cuts) == samples[0].metadata["agent"]["context_cuts"] > 0
        assert all(event["tokens"][0] > event["tokens"][1] for event in cuts)
        assert any(event["dropped"] or event["shortened"] for event in cuts)


async def test_the_record_has_what_was_sampled(stage: Raise) -> None:
    async with stage([f"one{END}", f"two{END}"]) as on:
        (sample,) = await on.play()
        record = on.record()
        replies = [record.tokens[event["n"]] for event in record.events if event["kind"] == "policy"]
        assert [*replies[-1].prompt_ids, *replies[-1].ids] == sample.tokens
        stored = [logprob for reply in replies for logprob in reply.log_probs]
        assert stored == [value for value, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask]


async def test_an_evaluation_needs_no_flag_and_has_one_outcome(stage: Raise) -> None:
    async with stage([f"one{END}"], Task("guess", {"steps": 1, "score": 0.5})) as on:
        (sample,) = await on.play(evaluation=True, dynamic_history=False)
        assert sample.reward == -1.0


async def test_a_group_is_scored_by_slime_without_a_reward_function(stage: Raise) -> None:
    async with stage([f"one{END}"]) as on:
        args = on.args.changed(custom_generate_function_path="agentrl.rollout.generate.generate", custom_rm_path=None)
        group = await generate_and_rm_group(args, [on.sample(index=n) for n in range(3)], dict(PARAMETERS))
        assert [[piece.reward for piece in pieces] for pieces in group] == [[1.0]] * 3
        assert rollout_ids([piece for pieces in group for piece in pieces]) == [0, 1, 2]


class AgreeingJudge:
    """Likes the first step of an episode, and has no vote on any other."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
        self.asked.append(question.reply)
        return [Vote(kind, "", 1 if question.reply == "one" else None, None, 0.1)] * count


def test_the_judge_has_its_own_engines_tokenizer_and_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "EngineHttp", lambda url, timeout, concurrency: (url, concurrency))
    monkeypatch.setattr(loop, "load_tokenizer", lambda path: f"tokenizer of {path}")
    monkeypatch.setattr(loop, "load_processor", lambda path: None)
    monkeypatch.setattr(loop, "JudgeClient", lambda *told: told)
    votes: dict[str, Any] = {"prm_m": 3, "prm_temperature": 0.3, "prm_max_new_tokens": 77}
    where: dict[str, Any] = {"prm_router_ip": "10.0.0.9", "prm_router_port": 4321}
    args = rollout_args(Path("policy")).changed(prm_model_path="judge", **votes, **where)
    engine, tokenizer, _, sampling, picture_tokens = cast(Any, loop.judge_of(args))
    assert picture_tokens is None
    assert engine == ("http://10.0.0.9:4321", loop.JUDGED_AT_A_TIME * 3)
    assert tokenizer == "tokenizer of judge"
    assert (sampling.temperature, sampling.max_new_tokens) == (0.3, 77)
    assert loop.judge_of(args.changed(prm_router_ip=None)) is None


def test_a_judge_that_runs_already_is_asked_at_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "EngineHttp", lambda url, timeout, concurrency: url)
    monkeypatch.setattr(loop, "load_tokenizer", lambda path: f"tokenizer of {path}")
    monkeypatch.setattr(loop, "load_processor", lambda path: None)
    monkeypatch.setattr(loop, "JudgeClient", lambda *told: told)
    args = rollout_args(Path("policy")).changed(prm_model_path="judge")
    for url in ("http://judge:1", "http://judge:1/", "http://judge:1/generate"):
        engine, tokenizer, *_ = cast(Any, loop.judge_of(args.changed(prm_sglang_url=url)))
        assert (engine, tokenizer) == ("http://judge:1", "tokenizer of judge")
    both = {"prm_sglang_url": "http://judge:1", "prm_router_ip": "h", "prm_router_port": 1}
    assert cast(Any, loop.judge_of(args.changed(**both)))[0] == "http://judge:1", "what the user named wins"
    with pytest.raises(ConfigError, match="is not a URL"):
        loop.judge_of(args.changed(prm_sglang_url="judge:1"))


async def test_a_question_is_shortened_until_the_judge_has_room(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is of question and answer together; a question that never fits gives no score."""
    lengths: list[int] = []

    class Measured(AgreeingJudge):
        async def length(self, kind: Any, question: Any) -> int:
            lengths.append(len(question.prompt[-1]["content"]))
            return lengths[-1]

    judge = Measured()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    task = Task("guess", {"steps": 1, "text": "word " * 4000})
    monkeypatch.setenv("AGENTRL_JUDGE_TOKENS", "6100")
    async with stage([f"one{END}"], task) as on:
        (sample,) = await on.play(prm_max_new_tokens=100, rollout_max_context_len=None)
        assert sample.metadata["step_wise"]["step_scores"] == [1.0]
    assert [length <= 6000 for length in lengths] == [False, False, True], lengths
    monkeypatch.setenv("AGENTRL_JUDGE_TOKENS", "150")
    async with stage([f"one{END}"], task) as on:
        (sample,) = await on.play(prm_max_new_tokens=100, rollout_max_context_len=None)
        assert sample.metadata["agent"]["judge_skipped"] == 1
    monkeypatch.setenv("AGENTRL_JUDGE_TOKENS", "100")
    async with stage([f"one{END}"], task) as on:
        with pytest.raises(ConfigError, match="leave no room beside --prm-max-new-tokens 100"):
            await on.play(prm_max_new_tokens=100)


async def test_the_judges_scores_are_in_rewards_and_steps(stage: Raise, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = AgreeingJudge()
    monkeypatch.setattr(loop, "judge_of", lambda args: judge)
    monkeypatch.setenv("AGENTRL_STEP_GAMMA", "0.5")
    async with stage([f"one{END}", f"two{END}", f"three{END}"]) as on:
        (sample,) = await on.play(prm_step_coef=0.5)
        assert sample.reward == 1.5
        wise = sample.metadata["step_wise"]
        assert wise["step_scores"] == [1.0, None, None]
        assert wise["step_scores_with_outcome"] == [0.25 + 0.5, 0.5, 1.0]
        assert judge.asked == ["one", "two", "three"]
        assert on.kinds().count("judge") == 3


@pytest.mark.parametrize(
    ("task_id", "changes", "words"),
    [
        ("elsewhere", {}, "no task 'elsewhere'"),
        ("guess", {"dynamic_history": False}, "add --dynamic-history"),
        ("strange", {}, "actions are 'telepathy'"),
        ("guess", {"use_rollout_routing_replay": True}, "remove --use-rollout-routing-replay"),
    ],
)
async def test_what_no_retry_helps_is_an_error(stage: Raise, task_id: str, changes: Any, words: str) -> None:
    tasks = (Task("guess", {"steps": 3}), Task("strange", {"steps": 3, "actions": "telepathy"}))
    async with stage([f"one{END}"], *tasks) as on:
        with pytest.raises(ConfigError, match=words):
            await on.play(on.sample(task_id), **changes)


async def test_a_lease_that_is_not_to_be_had_is_an_infrastructure_failure(
    stage: Raise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_WAIT_SECONDS", "0.01")
    monkeypatch.setenv("AGENTRL_TRIES", "1")
    async with stage([f"one{END}"]) as on:
        held = [await on.pool.lease(LeaseRequest(request_id=f"holding{n}", task_id="guess")) for n in range(4)]
        lost = await on.play()
        assert (lost.status, lost.metadata["agent_lost"]) == (Sample.Status.ABORTED, "capacity")
        for lease in held:
            await on.pool.release(lease.lease_id)


def test_without_a_url_the_error_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="set it to a pool's URL"):
        loop.service_of(loop.Settings.from_env({}))


@pytest.mark.parametrize("seed", ["1", -1, None, 0.5])
async def test_a_seed_that_is_none_is_an_error(stage: Raise, seed: Any) -> None:
    async with stage([f"one{END}"]) as on:
        with pytest.raises(ConfigError, match="give its row a whole number"):
            await on.play(on.sample(metadata={"task_id": "guess", "seed": seed}))


async def test_the_prompts_seed_is_that_of_the_reset(stage: Raise) -> None:
    async with stage([f"one{END}"]) as on:
        await on.play(on.sample(metadata={"task_id": "guess", "seed": 5}))
        assert on.environment.seeds == [5]
