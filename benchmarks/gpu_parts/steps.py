"""What is measured on a GPU, in which order, and what each step needs.

Guarantees: a step needs nothing of another one, so each can run alone and in any order. The most telling come first, because the
time of a run may end before the last: whether engine and trainer agree, the speed of a step, which kernels round as they may.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENGINE = ("sglang",)
RUN = ("sglang", "ray")


@dataclass(frozen=True)
class Step:
    """One process.

    Attributes:
        name: what ``--only`` takes.
        target: a file of tests, or the module of a benchmark.
        words: a benchmark's arguments besides ``--device`` and ``--json``; ``--quick`` replaces sizes among them.
        needs: packages that it imports besides torch, transformers and pytest.
        gpus: how many it needs.
        seconds: its time limit.
    """

    name: str
    target: str
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gpus: int = 1
    seconds: float = 120.0

    @property
    def is_test(self) -> bool:
        """Whether the target is a file of tests."""
        return self.target.endswith(".py")

    def command(self, folder: Path, report: Path, *, quick: bool = False) -> list[str]:
        """Return the interpreter's arguments.

        Args:
            folder: where a benchmark writes its own file.
            report: where pytest writes its JUnit report.
            quick: a benchmark checks on a CPU that it runs.
        """
        if self.is_test:
            return ["-m", "pytest", self.target, "-q", "-s", "-rs", "-p", "no:cacheprovider", f"--junitxml={report}"]
        device = ("--device", "cpu", "--quick") if quick else ("--device", "cuda")
        return ["-m", self.target, *device, *self.words, "--json", str(folder / "figures.json")]


STEPS = (
    Step("engine tests", "tests/gpu/test_engine_gpu.py", needs=ENGINE, seconds=240),
    Step(
        "trainer 0.6B, 16k tokens",
        "benchmarks.trainer",
        (
            *("--shape", "qwen3-0.6b", "--longest", "4096", "--lengths", "2048", "--batches", "2048", "--cap", "16384"),
            *(
                "--rounds",
                "5",
                "--parts",
                "steps",
                "pass",
                "--sides",
                "packed, compiled",
                "packed",
                "LoRA, packed, compiled",
            ),
            *("LoRA, packed", "packed, liger"),
        ),
        seconds=200,
    ),
    Step("parity", "benchmarks.parity", seconds=240),
    Step(
        "trainer 4B, 32k tokens",
        "benchmarks.trainer",
        (
            *("--shape", "qwen3-4b", "--long", "32768", "--batches", "long", "--cap", "32768", "--rounds", "2"),
            *("--parts", "steps", "--sides", "checkpointing, planned, compiled", "checkpointing, planned"),
            *("LoRA, checkpointing, planned, compiled", "top-K 50, checkpointing"),
        ),
        seconds=260,
    ),
    Step("losses", "benchmarks.losses", seconds=60),
    Step("weight push", "benchmarks.weight_sync", ("--repeats", "5"), seconds=40),
    Step("loop on one GPU", "tests/gpu/test_share_gpu.py", needs=RUN, seconds=300),
    Step("tiny demo", "benchmarks.tiny_demo", needs=RUN, seconds=240),
    Step("adapter tests", "tests/gpu/test_adapter_gpu.py", needs=(*ENGINE, "peft"), seconds=180),
    Step("walk kernels", "tests/gpu/test_walk_kernels_gpu.py", needs=("triton",), seconds=60),
    Step("attention", "benchmarks.attention", seconds=40),
    Step("trainer tests", "tests/gpu/test_trainer_gpu.py", seconds=80),
    Step("weight push tests", "tests/gpu/test_weight_sync_gpu.py", seconds=60),
    Step("memory given away", "tests/gpu/test_colocate_gpu.py", seconds=70),
    Step("Megatron, local layers", "tests/gpu/test_megatron_local_gpu.py", needs=("megatron",), seconds=90),
    Step(
        "4-bit base",
        "benchmarks.trainer",
        (
            *("--shape", "qwen3-4b", "--samples", "8", "--longest", "2048", "--cap", "4096", "--batches", "mixed"),
            *("--rounds", "2", "--parts", "steps", "--sides", "LoRA, packed", "LoRA, packed, NF4"),
        ),
        needs=("bitsandbytes", "peft"),
        seconds=90,
    ),
    Step("4-bit base tests", "tests/gpu/test_nf4_gpu.py", needs=(*ENGINE, "peft", "bitsandbytes"), seconds=180),
    Step("push over NCCL", "tests/gpu/test_nccl_push_gpu.py", gpus=2, seconds=150),
    Step("Megatron", "tests/gpu/test_megatron_gpu.py", needs=("megatron", "transformer_engine"), seconds=300),
)


def refusal(step: Step, *, gpus: int, missing: list[str]) -> str | None:
    """Return why ``step`` cannot run on a machine with ``gpus`` and without the packages ``missing``; None if it can."""
    lacks = [name for name in step.needs if name in missing]
    if lacks:
        return f"needs {', '.join(lacks)}"
    if gpus < step.gpus:
        return f"needs {step.gpus} CUDA devices, {gpus} seen"
    return None
