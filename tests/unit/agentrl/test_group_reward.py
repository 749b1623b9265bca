"""A judge compares the episodes of a task: what it sees of them, the rewards that follow, and what is not trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.rollout import generate as loop
from agentrl.rollout import group_reward as plugin
from agentrl.rollout.generate import agents_of
from agentrl.rollout.group_reward import group_of, group_reward
from agentrl.rollout.settings import Settings
from groundwork.exceptions import ConfigError
from lab.testkit.agent_rollouts import talk
from openclaw.exceptions import EngineUnavailableError
from openclaw.judge.endpoint import ClassJudge
from openclaw.judge.group import GroupJudge
from slime.rollout.generation import GenerateState, generate_and_rm_group
from slime.rollout.metrics import grader_problems
from slime.rollout.rewards import constant_groups, post_process_rewards
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, PARAMETERS, Stage, staged

PATHS = {
    "custom_generate_function_path": "agentrl.rollout.generate.generate",
    "custom_rm_path": "agentrl.rollout.group_reward.group_reward",
    "group_rm": True,
}


class Judge:
    """Scores an episode by how often its policy says "good"; the first ``away`` questions fail."""

    def __init__(self, away: int = 0, given: Any = None) -> None:
        self.away, self.given, self.asked = away, given, list[Any]()

    def score_group(self, prompt: Any, replies: Any, rubric: str) -> Any:
        self.asked.append((prompt, replies, rubric))
        if self.away:
            self.away -= 1
            raise EngineUnavailableError("the judge is away")
        said = [" ".join(each["content"] for each in reply if each["role"] == "assistant") for reply in replies]
        return self.given or [min(1.0, text.count("good") / 4) for text in said]


@pytest.fixture
def stage(tmp_path: Any, tiny_random_model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_up(judge: Judge, *tasks: Task, replies: Sequence[str] = (f"one{END}",)) -> Any:
        monkeypatch.setattr(plugin, "_judge_of", lambda args: GroupJudge(ClassJudge(judge), 1, 0.5))
        monkeypatch.setattr(plugin, "PAUSE_SECONDS", 0.0)
        return staged(
            talk(*(tasks or (Task("guess", {"steps": 2}),))), replies, tmp_path, tiny_random_model, monkeypatch
        )

    return set_up


def various(on: Stage, *episodes: Sequence[str]) -> None:
    """Let the episodes of a group say different things: in the order in which they begin, each by the words of its first reply."""
    begun = list(episodes)
    rest: dict[str, str] = {}

    def script(prompt: list[int]) -> list[int]:
        so_far = on.tokenizer.decode(prompt)
        reply = next((second for first, second in rest.items() if f"assistant\n{first}" in so_far), None)
        if reply is None:
            reply, second = begun.pop(0)
            rest[reply] = second
        return on.tokenizer.encode(reply, add_special_tokens=False)

    on.policy.script = script


async def played(on: Stage, count: int, **changes: Any) -> tuple[Any, list[Any]]:
    args = on.args.changed(**{**PATHS, **changes})
    return args, await generate_and_rm_group(args, [on.sample(index=n) for n in range(count)], dict(PARAMETERS))


async def test_the_judge_sees_the_prompt_once_and_each_episode_by_role_and_its_scores_are_the_rewards(
    stage: Any,
) -> None:
    judge = Judge()
    async with stage(judge) as on:
        various(on, [f"a good{END}", f"good good{END}"], [f"b bad{END}", f"bad{END}"], [f"c good{END}", f"so so{END}"])
        args, group = await played(on, 3)
        [(prompt, shown, rubric)] = judge.asked
        assert rubric == plugin.RUBRIC
        assert [message["role"] for message in prompt] == ["user"]
        assert "Guess my number." in prompt[0]["content"]
        assert all([message["role"] for message in reply] == ["assistant", "tool", "assistant"] for reply in shown)
        assert not any("Guess my number." in message["content"] for reply in shown for message in reply)
        first = {reply[0]["content"]: reply for reply in shown}
        assert '1: {"text": "a good"}' in first["a good"][1]["content"]
        pieces = [piece for member in group for piece in member]
        assert [piece.reward for piece in pieces] == [0.75, 0.0, 0.25]
        _, advantages = post_process_rewards(args.changed(advantage_estimator="grpo"), pieces)
        assert advantages[0] > 0 > advantages[1]
        note = pieces[2].metadata["group"]
        assert (note["score"], note["place"], note["outcome"], sorted(note["orders"][0])) == (
            0.25,
            2,
            "scored",
            [0, 1, 2],
        )
        assert not any(piece.remove_sample for piece in pieces)
        assert await group_reward(args, group) == [[0.75], [0.0], [0.25]], (
            "a group that comes back is not asked about again"
        )
        assert len(judge.asked) == 1


async def test_a_share_leaves_the_rest_to_the_outcome_and_a_dict_keeps_its_parts(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_GROUP_SHARE", "0.25")
    monkeypatch.setenv("AGENTRL_GROUP_RUBRIC", "Say good.")
    judge = Judge()
    async with stage(judge) as on:
        various(on, [f"a good{END}", f"x{END}"], [f"b{END}", f"x{END}"])
        args, group = await played(on, 2)
        assert [piece.reward for member in group for piece in member] == [0.75 * 1.0 + 0.25 * 0.25, 0.75]
        assert judge.asked[0][2] == "Say good."
        for (piece,), parts in zip(
            group, ({"score": -1.0, "accuracy": 0.0}, {"score": 1.0, "accuracy": 1.0}), strict=True
        ):
            del piece.metadata["group"]
            piece.reward = parts
        rewards = await group_reward(args.changed(reward_key="score"), group)
        assert rewards == [
            [{"score": -0.75 + 0.0625, "accuracy": 0.0, "group_score": 0.25}],
            [{"score": 0.75, "accuracy": 1.0, "group_score": 0.0}],
        ]
        bare = [Sample(tokens=[1, n], response_length=1, status=Sample.Status.COMPLETED) for n in (2, 3)]
        with pytest.raises(ConfigError, match="leaves a part to another reward"):
            await group_reward(args, bare)


async def test_episodes_that_tie_have_equal_rewards_and_no_gradient(stage: Any) -> None:
    async with stage(Judge()) as on:
        various(on, [f"a{END}", f"x{END}"], [f"b{END}", f"y{END}"])
        args, group = await played(on, 2)
        pieces = [piece for member in group for piece in member]
        assert [piece.reward for piece in pieces] == [0.0, 0.0]
        assert constant_groups(args, pieces) == [0.0], "which the rollout's metrics count"
        assert post_process_rewards(args.changed(advantage_estimator="grpo"), pieces)[1] == [0.0, 0.0]
        assert pieces[0].metadata["group"]["outcome"] == "tied"


@pytest.mark.parametrize(("given", "reason"), [([1.0], "group_no_quorum"), (None, "group_alike")])
async def test_a_group_without_scores_is_not_trained_and_counted(stage: Any, given: Any, reason: str) -> None:
    async with stage(Judge(given=given)) as on:
        if given:
            various(on, [f"a{END}", f"x{END}"], [f"b{END}", f"y{END}"])
        _, group = await played(on, 2)
        pieces = [piece for member in group for piece in member]
        assert [(piece.remove_sample, piece.reward) for piece in pieces] == [(True, 1.0)] * 2
        assert grader_problems(pieces) == {reason: 2}


async def test_a_group_waits_for_a_judge_that_is_away_until_the_rollout_ends(stage: Any) -> None:
    judge = Judge(away=3)
    async with stage(judge) as on:
        various(on, [f"a good{END}", f"x{END}"], [f"b{END}", f"y{END}"])
        args, group = await played(on, 2)
        assert [piece.reward for member in group for piece in member] == [0.25, 0.0]
        assert len(judge.asked) == 4
        for (piece,) in group:
            del piece.metadata["group"]
            piece.reward = 1.0
        judge.away = 1 << 60
        waiting = asyncio.create_task(group_reward(args, group))
        while len(judge.asked) < 6:
            await asyncio.sleep(0)
        GenerateState(args).aborted = True
        assert await waiting == [[1.0], [1.0]], "as it was, so that a partial rollout asks again"
        assert "group" not in group[0][0].metadata
        GenerateState(args).aborted = False


async def test_a_defect_of_a_class_that_judges_ends_no_rollout(stage: Any) -> None:
    judge = Judge()
    judge.score_group = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    async with stage(judge) as on:
        various(on, [f"a{END}", f"x{END}"], [f"b{END}", f"y{END}"])
        _, group = await played(on, 2)
        pieces = [piece for member in group for piece in member]
        assert grader_problems(pieces) == {"group_no_quorum": 2}
        assert all(piece.remove_sample for piece in pieces)


async def test_a_group_with_an_aborted_episode_is_not_asked_about(stage: Any) -> None:
    judge = Judge()
    async with stage(judge) as on:
        samples = [Sample(status=Sample.Status.ABORTED), [Sample(reward=1.0, status=Sample.Status.COMPLETED)]]
        assert await group_reward(on.args, samples) == [None, [1.0]]
        assert await group_reward(on.args, []) == []
        assert judge.asked == []


async def test_an_episode_that_was_not_played_is_no_member_and_not_trained(stage: Any) -> None:
    judge = Judge()
    async with stage(judge) as on:
        various(on, [f"a good{END}", f"x{END}"], [f"b{END}", f"y{END}"])
        args, group = await played(on, 2)
        for (piece,) in group:
            del piece.metadata["group"]
        absent = [Sample(tokens=[1], reward=0.0, remove_sample=True, status=Sample.Status.TRUNCATED)]
        assert await group_reward(args, [group[0], absent, group[1]]) == [[0.25], [0.125], [0.0]], (
            "compared with no failure"
        )
        assert absent[0].remove_sample is True
        assert len(judge.asked[-1][1]) == 2


async def test_flags_that_cannot_work_say_what_to_type(stage: Any) -> None:
    async with stage(Judge()) as on:
        done = [Sample(tokens=[1, n], response_length=1, status=Sample.Status.COMPLETED) for n in range(9)]
        with pytest.raises(ConfigError, match="add --group-rm"):
            await group_reward(on.args, done[0])
        for wrong in (done, done[:1]):
            with pytest.raises(ConfigError, match="compares 2 to 8 episodes, and got"):
                await group_reward(on.args, wrong)
        with pytest.raises(ConfigError, match="use --advantage-estimator grpo"):
            await group_reward(on.args.changed(advantage_estimator="step_wise"), done[:2])


async def test_an_episode_of_several_samples_is_one_member_whose_repeated_part_is_shown_once(stage: Any) -> None:
    async with stage(Judge()) as on:
        codec = agents_of(on.args).codec
        ids = {
            word: on.tokenizer.encode(f" {word}", add_special_tokens=False)
            for word in ("task", "look", "file", "note", "done")
        }
        ids["thought"] = on.tokenizer.encode("<think> hm</think>", add_special_tokens=False)

        def sample(prompt: str, response: str, sampled: str) -> Sample:
            start = [token for word in prompt.split() for token in ids[word]]
            parts = [(token, int(word in sampled.split())) for word in response.split() for token in ids[word]]
            return Sample(
                tokens=[*start, *(token for token, _ in parts)],
                response_length=len(parts),
                loss_mask=[mask for _, mask in parts],
            )

        cut = [sample("task", "thought look file", "thought look"), sample("task thought look note", "done", "done")]
        group = group_of(codec, [cut, [sample("task", "done", "done")]], "x")
        assert group.prompt == [{"role": "user", "content": "task"}]
        assert group.members == [
            [
                {"role": "assistant", "content": "look"},
                {"role": "tool", "content": "file"},
                {"role": "tool", "content": "note"},
                {"role": "assistant", "content": "done"},
            ],
            [{"role": "assistant", "content": "done"}],
        ]


async def test_a_judge_of_groups_scores_steps_only_where_they_weigh_something(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "judge_of", lambda args: Judge())
    async with stage(Judge()) as on:
        for weight, judged in ((0.0, False), (0.5, True)):
            agents = loop.Agents(on.args.changed(group_rm=True, prm_step_coef=weight), on.tokenizer)
            assert (agents.step_judge(Settings()) is not None) is judged


class Tidy:
    def score_group(self, prompt: Any, replies: Any, rubric: str) -> list[float]:
        return [0.5] * len(replies)


async def test_the_judge_is_the_one_that_variables_or_flags_name(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(Judge()) as on:
        plain = plugin.RuntimeVariables()
        with pytest.raises(ConfigError, match="there is no judge of groups"):
            plugin._speaker(on.args, plain)
        monkeypatch.setattr(plugin, "judge_of", lambda args, grammar: ("engine", grammar))
        assert plugin._speaker(on.args.changed(prm_m=2), plain) == (2, ("engine", True))
        votes, judge = plugin._speaker(on.args, plugin.RuntimeVariables(judge_class=f"{__name__}.Tidy", prm_m=3))
        assert (votes, type(judge)) == (3, ClassJudge)
        with pytest.raises(ConfigError, match="lacks: def score_group"):
            plugin._speaker(on.args, plugin.RuntimeVariables(judge_class="builtins.dict"))
        with pytest.raises(ConfigError, match="needs OPENCLAW_JUDGE_MODEL"):
            plugin._speaker(on.args, plugin.RuntimeVariables(judge_base_url="http://host/v1"))
