"""A finished episode as training samples: one per segment, all with the episode's reward and identity.

Guarantees: group, index and rollout id are those of the sample that the episode answers, so a trajectory has one loss
denominator. Each reply is in exactly one sample. An episode without a reply is one sample that is not trained.
"""

from __future__ import annotations

from typing import Any

from agentrl.rollout.episode import DONE, Result
from agentrl.rollout.rewards import step_rewards
from slime.args import Arguments
from slime.rollout.generation import mask_older_weights
from slime.rollout.rewards import trajectory_reward
from slime.rollout.segments import Segment, merge
from slime.utils.types import Sample


def samples_of(
    args: Arguments,
    origin: Sample,
    result: Result,
    tokenizer: Any,
    *,
    gamma: float,
    notes: dict[str, Any],
    trained: bool = True,
) -> list[Sample]:
    """Return the samples of an episode, at least one.

    Args:
        args: of the run; ``prm_step_coef`` weighs the judge's scores.
        origin: the sample that the episode answers.
        result: of the episode.
        tokenizer: decodes responses, for people only.
        gamma: discount of the outcome per step before the last.
        notes: for ``metadata["agent"]``, beside the episode's counts.
        trained: whether the samples need the pixel values of their pictures.
    """
    fields: dict[str, Any] = {
        "group_index": origin.group_index,
        "index": origin.index,
        "prompt": origin.prompt,
        "label": origin.label,
        "rollout_id": origin.rollout_id,
        "generate_function_path": origin.generate_function_path,
        "custom_rm_path": origin.custom_rm_path,
        "non_generation_time": result.outside_seconds,
        "status": Sample.Status.COMPLETED if result.ending == DONE else Sample.Status.TRUNCATED,
    }
    agent = {**notes, **result.counts, "ending": result.ending, "turns": len(result.turns), "outcome": result.outcome}
    metadata = {**origin.metadata, "round_number": len(result.turns), "agent": agent}
    if result.outcome is None:
        empty = Segment(result.first_prompt, len(result.first_prompt))
        return [empty.sample(**fields, metadata=metadata, reward=0.0, remove_sample=True)]
    scores = [turn.score for turn in result.turns]
    coefficient = args.prm_step_coef
    reward = trajectory_reward(result.outcome, scores, coefficient)
    steps = step_rewards(result.outcome, scores, coefficient, gamma)
    samples: list[Sample] = []
    for segment in merge([turn.sampled for turn in result.turns]):
        wise = {
            "step_scores": [scores[turn] for turn in segment.turns],
            "step_scores_with_outcome": [steps[turn] for turn in segment.turns],
            "step_token_spans": [list(span) for span in segment.turn_spans],
            "step_indices": list(segment.turns),
        }
        sample = segment.sample(**fields, metadata={**metadata, "step_wise": wise}, reward=reward)
        numbers = pictures_of(segment, result)
        if trained and numbers:
            sample.multimodal_train_inputs = result.pictures.tensors(numbers)
        sample.response = tokenizer.decode(sample.tokens[segment.prompt_length :])
        if args.mask_offpolicy_in_partial_rollout:
            mask_older_weights(sample)
        samples.append(sample)
    samples[0].prefix_cache_info = result.prefix_cache
    return samples


def pictures_of(segment: Segment, result: Result) -> tuple[int, ...]:
    """Return the numbers of the pictures in a segment's tokens: those of its last prompt, which extends the others.

    Raises:
        RuntimeError: the pictures of a prompt do not extend those before, although its tokens do.
    """
    numbers: tuple[int, ...] = ()
    for turn in segment.turns:
        longer = result.turns[turn].pictures
        if longer[: len(numbers)] != numbers:
            raise RuntimeError(
                f"a prompt's tokens extend those before, but its pictures {longer} do not extend {numbers}"
            )
        numbers = longer
    return numbers
