"""``--rm-type ifbench``: 1 if the reply follows every instruction of its prompt, else 0.

As in the rows of IFEval and IFBench, a sample has ``metadata["instruction_id_list"]`` and ``metadata["kwargs"]``, the
arguments of each instruction. An instruction that is not implemented here is an error that names it, never a 0.
"""

from __future__ import annotations

import inspect
from typing import Any

from slime.args import Arguments
from slime.exceptions import SampleError
from slime.rollout.rm_hub import instructions_ifbench, instructions_ifeval
from slime.rollout.rm_hub.extraction import after_thinking
from slime.rollout.rm_hub.grader import Grader
from slime.rollout.rm_hub.instructions_ifeval import arguments
from slime.utils.types import Sample

CHECKS = {**instructions_ifeval.CHECKS, **instructions_ifbench.CHECKS}


def instructions(sample: Sample) -> list[tuple[str, dict[str, Any]]]:
    """Return id and arguments of each instruction.

    Raises:
        SampleError: there is no instruction, one is not implemented here, or its arguments do not fit.
    """
    names = sample.metadata.get("instruction_id_list") or []
    values = sample.metadata.get("kwargs") or [{}] * len(names)
    where = f"sample {sample.index}"
    if not names or len(values) != len(names):
        raise SampleError(f'{where}: ifbench needs metadata["instruction_id_list"] and as many entries of "kwargs"')
    unknown = sorted({name for name in names if name not in CHECKS})
    if unknown:
        raise SampleError(
            f"{where}: ifbench cannot check these instructions here: {', '.join(unknown)}; leave such rows out"
        )
    results = [(name, arguments(given)) for name, given in zip(names, values, strict=True)]
    for name, given in results:
        try:
            inspect.signature(CHECKS[name]).bind("", **given)
        except TypeError as error:
            raise SampleError(f"{where}: arguments of {name} do not fit: {error}") from error
    return results


def _check(sample: Sample) -> None:
    instructions(sample)


def _answer(reply: str) -> str | None:
    text = reply if (rest := after_thinking(reply)) is None else rest
    return text if text.strip() else None


async def _compare(args: Arguments, sample: Sample, answer: str) -> float:
    return float(all(CHECKS[name](answer, **given) for name, given in instructions(sample)))


GRADER = Grader(extract=_answer, compare=_compare, wrong=0.0, check=_check)
