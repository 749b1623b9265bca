"""Optimizer, learning-rate schedule, gradient handling."""

from __future__ import annotations

from slime.arguments.option import Group, Option

OPTIMIZER = Group(
    "optimizer",
    (
        Option("--optimizer", "optimizer (AdamW)", str, "adam", ("adam",)),
        Option("--lr", "learning rate", float, 1e-6),
        Option("--min-lr", "floor of the schedule", float, 0.0),
        Option(
            "--lr-decay-style",
            "schedule after the warm-up; other cores: linear (Megatron), constant (FSDP)",
            str,
            "constant",
            ("constant", "linear", "cosine", "WSD"),
        ),
        Option("--lr-decay-iters", "steps until --min-lr; default: all steps of the run", int),
        Option("--lr-wsd-decay-iters", "last steps, in which WSD decays", int),
        Option(
            "--lr-wsd-decay-style",
            "how WSD decays",
            str,
            "exponential",
            ("exponential", "linear", "cosine", "minus_sqrt"),
        ),
        Option(
            "--use-checkpoint-lr-scheduler",
            "a resumed run keeps the schedule of its checkpoint, whatever the flags say",
            bool,
            aliases=("--use-checkpoint-opt_param-scheduler",),
        ),
        Option(
            "--override-lr-scheduler",
            "a resumed run takes the schedule of its flags at the checkpoint's step; this is the default",
            bool,
            aliases=("--override-opt_param-scheduler",),
        ),
        Option("--reset-optimizer-states", "forget the moments before each rollout's steps", bool),
        Option("--lr-warmup-iters", "warm-up steps", int, 0),
        Option("--lr-warmup-fraction", "warm-up share of the decay steps", float, aliases=("--warmup-ratio",)),
        Option("--lr-warmup-init", "learning rate the warm-up starts from", float, 0.0),
        Option("--weight-decay", "decoupled weight decay", float, 0.01),
        Option("--adam-beta1", "Adam's first decay", float, 0.9),
        Option(
            "--adam-beta2",
            "Adam's second decay, as launch scripts give it; other cores: 0.999 (Megatron), 0.95 (FSDP)",
            float,
            0.98,
        ),
        Option("--adam-eps", "Adam's epsilon", float, 1e-8),
        Option("--clip-grad", "largest gradient norm; 0 turns clipping off", float, 1.0),
    ),
)
