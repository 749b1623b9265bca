"""Plugins for tests of the rollout functions, named on the arguments as a user names them."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample


async def reward(args: Arguments, sample: Any, **kwargs: Any) -> Any:
    """0.5 for a sample, 1.5 for each of a list."""
    if isinstance(sample, list):
        return [1.5 for _ in sample]
    return 0.5


async def failing_reward(args: Arguments, sample: Any, **kwargs: Any) -> Any:
    """Fail."""
    raise RuntimeError("the grader is away")


async def rewarded_pair(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """Make two samples of one, with a reward each."""
    fields: dict[str, Any] = {"index": sample.index, "tokens": [1, 2], "response_length": 1, "reward": 7.0}
    return [Sample(**fields, status=Sample.Status.COMPLETED) for _ in range(2)]


async def place_in_group(args: Arguments, samples: list[Any], **kwargs: Any) -> list[Any]:
    """Give the first member its place, and each sample of the others a reward of its own."""
    return [
        float(place) if place == 0 else [place + 0.5 * n for n in range(len(each))]
        for place, each in enumerate(samples)
    ]


async def fan_out(args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> list[Sample]:
    """Make two samples of one, the first with a reward."""
    assert evaluation is False
    scored = Sample(index=sample.index, tokens=[1, 2], response_length=1, reward=7.0, status=Sample.Status.COMPLETED)
    unscored = Sample(index=sample.index, tokens=[1, 2], response_length=1, status=Sample.Status.COMPLETED)
    return [scored, unscored]


async def fan_out_until_aborted(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """Answer with the engine and hand on a finished step and the answer."""
    from slime.rollout.sglang_rollout import generate

    step = Sample(index=sample.index, tokens=[1, 2], response_length=1, reward=7.0, status=Sample.Status.COMPLETED)
    return [step, await generate(args, sample, sampling_params)]


async def nothing_for_odd(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """Return no sample for an odd index, otherwise a list of one."""
    done = Sample(index=sample.index, tokens=[1, 2], response_length=1, reward=1.0, status=Sample.Status.COMPLETED)
    done.weight_versions = ["4"]
    return [] if (sample.index or 0) % 2 else [done]


async def failed(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Return the prompt without a response, as a plugin does whose environment did not start."""
    sample.tokens, sample.reward, sample.remove_sample = [1, 2], 0.0, True
    sample.status = Sample.Status.COMPLETED
    return sample


async def nothing(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    """Return no sample at all."""
    return []


async def aborted_for_odd(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Give up on an odd index after two tokens, as plugins do whose environment went away; answer the others."""
    sample.tokens, sample.response_length = [1, 2, 3], 2
    sample.status = Sample.Status.ABORTED if (sample.index or 0) % 2 else Sample.Status.COMPLETED
    return sample


async def always_aborted(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Give up on the first try of a prompt, and answer on the second."""
    if args.seen.setdefault(sample.index, 0):
        sample.tokens, sample.response_length, sample.status = [1, 2], 1, Sample.Status.COMPLETED
    else:
        sample.status = Sample.Status.ABORTED
    args.seen[sample.index] += 1
    return sample


def keep_even(args: Arguments, group: list[Sample], **kwargs: Any) -> bool:
    """Keep groups whose first sample has an even index."""
    return (group[0].index or 0) % 2 == 0


def keep_first_spare_odd(args: Arguments, group: list[Sample], **kwargs: Any) -> DynamicFilterOutput:
    """Keep the first group; those with an odd index only when there is too little."""
    index = group[0].index or 0
    return DynamicFilterOutput(index == 0, "odd" if index % 2 else "even", keep_when_insufficient=index % 2 == 1)


def remove_last(args: Arguments, groups: list[list[Sample]]) -> None:
    """Mark the last group for removal."""
    for sample in groups[-1]:
        sample.remove_sample = True


def note_all(args: Arguments, groups: list[list[Sample]], get_samples: Any) -> None:
    """Note in the first sample's metadata how many groups there were, and ask for a group."""
    groups[0][0].metadata["all_groups"] = [group[0].index for group in groups]
    assert len(get_samples(1)) == 1


def double(args: Arguments, sample: Sample) -> None:
    """A hook that changes the sample in place and declares no keyword."""
    sample.metadata["hooks"] = [*sample.metadata.get("hooks", []), "double"]


async def replace(args: Arguments, sample: Sample, *, rollout_id: int | None = None) -> Sample:
    """An async hook that returns another sample and asks for the rollout."""
    data = sample.to_dict() | {"metadata": {**sample.metadata, "rollout_id": rollout_id}}
    data["metadata"]["hooks"] = [*sample.metadata.get("hooks", []), "replace"]
    return Sample.from_dict(data)


def hook_of_another_form(args: Arguments, sample: Sample) -> Any:
    """A hook that returns something else."""
    return 3
