"""Checkpoints: where weights come from, where they go, when a run goes on."""

from __future__ import annotations

from slime.arguments.option import Group, Option

CHECKPOINT = Group(
    "checkpoints",
    (
        Option("--hf-checkpoint", "Hugging Face folder: tokenizer, config, engine model, start weights"),
        Option(
            "--ref-load", "weights of the reference model, and start weights without --load; default: --hf-checkpoint"
        ),
        Option(
            "--load",
            "checkpoint root to start from (weights, optimizer, counters)",
            aliases=("--resume-from-checkpoint",),
        ),
        Option("--save", "checkpoint root"),
        Option("--save-interval", "rollouts between checkpoints", int),
        Option("--save-keep", "checkpoints kept in --save, the newest ones; 0 keeps all", int, 3),
        Option("--save-hf", "also write a Hugging Face folder; a path with {rollout_id}"),
        Option("--resume", "go on from the newest checkpoint in --save", bool),
        Option(
            "--max-trainer-restarts",
            "how often a run whose trainer rank or rollout manager died goes on by itself from the last checkpoint in --save, "
            "counted anew after each checkpoint; 0 ends the run",
            int,
            3,
        ),
        Option("--start-rollout-id", "first rollout id; default: from the checkpoint, else 0", int),
    ),
)
