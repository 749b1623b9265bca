"""Judge (process reward model) engines."""

from __future__ import annotations

from slime.arguments.option import Group, Option

JUDGE = Group(
    "judge",
    (
        Option("--prm-enable", "host judge engines", bool),
        Option("--prm-num-gpus", "GPUs of the judge engines", int, 0),
        Option("--prm-num-gpus-per-engine", "GPUs per judge engine", int, 1),
        Option("--prm-model-path", "judge weights; default: --hf-checkpoint"),
        Option("--prm-m", "votes per turn", int, 3),
        Option("--prm-temperature", "sampling temperature of the judge", float, 0.6),
        Option("--prm-max-new-tokens", "longest answer of the judge", int, 4096),
        Option("--prm-router-ip", "address of a judge that runs already; no judge engine is started"),
        Option("--prm-router-port", "its port", int),
    ),
)
