"""The loop on the tiny model in one process: a simulated student, the real ledger and gate, a policy-gradient step in plain torch.

There is no engine and no Ray, so a run takes a minute and is repeatable. What decides is the product's code: `Ledger` splits, leases,
quarantines and releases, `Gate` asks and decides. The step is Binary RL's: clipped ratio, baseline, AdamW.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import REPOSITORY
from openclaw.config.runtime_variables import GateVariables
from openclaw.credit.baseline import record_judged
from openclaw.gate.plugin import Gate
from openclaw.ledger.records import BASELINE, PROBE, Turn, Verdict, VersionSpan
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.rollout.before_push import Answer, Policies, Probe
from slime.utils.types import Sample

sys.path.insert(0, str(REPOSITORY / "openclaw-test"))

from word_problems.problems import draw_short, heldout
from word_problems.replies import follows_rule

from lab.tiny_models.build import ensure_built
from lab.tiny_models.sampling import TEMPERATURE, Sampler

CLIP, DUAL_CLIP = 0.2, 3.0
MAX_REPLY = 120
TURNS_PER_ROUND = 16


@dataclass(frozen=True)
class Setting:
    """One simulated run.

    Attributes:
        seed: of everything random.
        updates: number of batches.
        flipped: batches whose verdicts have the wrong sign.
        gated: whether the gate decides.
        new_taste_from: batch from which the user likes what was disliked before; None: never.
        accepts: whether a person accepts what is offered.
        learning_rate: of AdamW.
        batch: samples per update.
        held_out: number of held-out problems.
    """

    seed: int
    updates: int
    flipped: tuple[int, ...] = ()
    gated: bool = True
    new_taste_from: int | None = None
    accepts: bool = False
    learning_rate: float = 1e-4
    batch: int = 16
    held_out: int = 192


@dataclass
class Outcome:
    """What happened: per batch the share of liked held-out replies of the served version, and the decisions."""

    liked: list[float] = field(default_factory=list[float])
    refused: list[int] = field(default_factory=list[int])
    accepted_at: list[int] = field(default_factory=list[int])
    margins: list[float | None] = field(default_factory=list[float | None])
    errors: list[float | None] = field(default_factory=list[float | None])
    to_best: list[float | None] = field(default_factory=list[float | None])
    probes: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])
    whys: list[str] = field(default_factory=list[str])


class TorchPolicy:
    """A version of the policy for the gate, answered by a model in this process."""

    def __init__(self, model: Any, version: str) -> None:
        self._model = model
        self.version = version

    @torch.no_grad()
    def ask(self, probes: Sequence[Probe]) -> list[Answer]:
        """Return scores of stored replies and greedy replies."""
        return [self._answer(probe) for probe in probes]

    def _answer(self, probe: Probe) -> Answer:
        scores: list[float] = []
        if probe.reply_ids:
            scores = reply_log_probs(self._model, probe.prompt_ids, probe.reply_ids, 1.0).tolist()
        if not probe.max_new_tokens:
            return Answer(scores, [], False)
        ids, end = torch.tensor([list(probe.prompt_ids)]), self._model.config.eos_token_id
        output = self._model(input_ids=ids, use_cache=True, logits_to_keep=1)
        greedy: list[int] = []
        while len(greedy) < probe.max_new_tokens and greedy[-1:] != [end]:
            greedy.append(int(output.logits[0, -1].argmax()))
            output = self._model(
                input_ids=torch.tensor([[greedy[-1]]]), past_key_values=output.past_key_values, use_cache=True
            )
        return Answer(scores, greedy, greedy[-1:] == [end])


def reply_log_probs(model: Any, prompt: Sequence[int], reply: Sequence[int], temperature: float) -> torch.Tensor:
    """Return the log-probabilities ``[R]`` of a reply's tokens at a temperature."""
    ids = torch.tensor([[*prompt, *reply]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(list(reply))[:, None])[:, 0]


class Simulation:
    """One run; `run` returns what happened."""

    def __init__(self, setting: Setting, folder: Path, bounds: GateVariables | None = None) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(setting.seed)
        path = ensure_built(0)
        self._setting = setting
        self._bounds = replace(bounds or GateVariables(), gate_certificate=False)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=setting.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self._rng = random.Random(setting.seed)
        self._sampler = Sampler(self._model, self._tokenizer, setting.seed)
        self._ledger = Ledger(folder / "ledger.sqlite")
        args = Arguments(hf_checkpoint=str(path), run_dir=str(folder))
        self._gate = Gate(args, self._ledger, self._bounds)
        self._args = args
        self._version = 0
        self._sessions = 0
        self._serving = copy.deepcopy(self._model)

    def run(self) -> Outcome:
        """Take all updates."""
        outcome = Outcome(liked=[self.held_out()])
        for rollout_id in range(self._setting.updates):
            while self._ledger.samples.ready_count() < self._setting.batch:
                self._talk(rollout_id)
            samples = self._ledger.samples.claim(rollout_id, self._setting.batch)
            before = copy.deepcopy(self._optimizer.state_dict())
            self._step(samples)
            if not self._setting.gated or self._decides(rollout_id, outcome):
                self._version += 1
                self._ledger.samples.record_step(rollout_id, str(self._version), time.time(), time.time())
                self._serving.load_state_dict(self._model.state_dict())
            else:
                outcome.refused.append(rollout_id)
                self._model.load_state_dict(self._serving.state_dict())
                self._optimizer.load_state_dict(before)
                self._ledger.decisions.quarantine(rollout_id)
                if self._setting.accepts and self._ledger.decisions.accept_refused(self._bounds.gate_offer) is not None:
                    outcome.accepted_at.append(rollout_id)
            outcome.liked.append(self.held_out())
        return outcome

    def _likes(self, text: str, rollout_id: int) -> bool:
        changed = self._setting.new_taste_from is not None and rollout_id >= self._setting.new_taste_from
        return follows_rule(text) != changed

    def _talk(self, rollout_id: int) -> None:
        """Ask a round of problems, and judge the replies."""
        messages = [
            [{"role": "user", "content": draw_short(self._rng, "train").question}] for _ in range(TURNS_PER_ROUND)
        ]
        prompts = [self._sampler.prompt(each) for each in messages]
        self._sampler.model = self._serving
        for asked, prompt, reply in zip(messages, prompts, self._sampler.replies(prompts, MAX_REPLY), strict=True):
            text = self._sampler.text(reply)
            score = 1 if self._likes(text, rollout_id) else -1
            self._judge(asked, prompt, reply, text, -score if rollout_id in self._setting.flipped else score)

    def _judge(self, asked: list[dict[str, Any]], prompt: list[int], reply: list[int], text: str, score: int) -> None:
        with torch.no_grad():
            log_probs = reply_log_probs(self._serving, prompt, reply, TEMPERATURE).tolist()
        self._sessions += 1
        name = f"s{self._setting.seed}-{self._sessions}"
        turn = Turn(
            id=name,
            session_id=name,
            index=0,
            kind="main",
            created_at=float(self._sessions),
            finished_at=float(self._sessions),
            messages=asked,
            prompt_ids=prompt,
            response_ids=reply,
            response_logprobs=log_probs,
            finish_reason="stop" if reply[-1] == self._sampler.end else "length",
            response_message={"role": "assistant", "content": text},
            temperature=TEMPERATURE,
            top_p=1.0,
            weight_versions=[VersionSpan(str(self._version), 0, len(reply))],
        )
        self._ledger.turns.record(turn)
        self._ledger.turns.record_next_state(turn.id, [{"role": "user", "content": "judged"}], turn.created_at)
        probe = self._ledger.probes.becomes_probe(turn, self._bounds.gate_share if self._setting.gated else 0.0)
        samples = [] if probe else [make_sample(turn, float(score), score=score)]
        record_judged(self._ledger, turn.id, Verdict(score=score), samples, PROBE if probe else None)

    def _step(self, samples: list[Sample]) -> None:
        """Take one step of clipped policy gradient on a batch, with the token mean over the batch."""
        tokens = sum(sample.response_length for sample in samples)
        self._optimizer.zero_grad()
        for sample in samples:
            prompt, reply = sample.tokens[: -sample.response_length], sample.tokens[-sample.response_length :]
            advantage = float(sample.reward) - sample.metadata.get(BASELINE, 0.0)
            new = reply_log_probs(self._model, prompt, reply, TEMPERATURE)
            ratio = (new - torch.tensor(sample.rollout_log_probs)).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            if advantage < 0:
                surrogate = torch.maximum(surrogate, torch.tensor(DUAL_CLIP * advantage))
            (-surrogate.sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def _decides(self, rollout_id: int, outcome: Outcome) -> bool:
        policies = Policies(
            TorchPolicy(self._serving, str(self._version)), TorchPolicy(self._model, str(self._version + 1))
        )
        decision = self._gate.decide(rollout_id, policies)
        metrics = decision.metrics
        outcome.margins.append(metrics.get("gate/margin"))
        outcome.errors.append(metrics.get("gate/margin_error"))
        outcome.to_best.append(metrics.get("gate/margin_to_best"))
        outcome.probes.append(metrics["gate/probes_liked"] + metrics["gate/probes_disliked"])
        outcome.seconds.append(metrics["gate/seconds"])
        outcome.whys.append(decision.why)
        return decision.accepted

    def held_out(self) -> float:
        """Return the share of held-out replies of the served version that follow the first rule; the same draws each time."""
        sampler = Sampler(self._serving, self._tokenizer, 17)
        problems = heldout(self._setting.held_out)
        prompts = [sampler.prompt([{"role": "user", "content": problem.question}]) for problem in problems]
        replies = sampler.replies(prompts, MAX_REPLY, batch=96)
        return sum(follows_rule(sampler.text(reply)) for reply in replies) / len(replies)


def simulate(setting: Setting, bounds: GateVariables | None = None) -> Outcome:
    """Run one setting in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        return Simulation(setting, Path(folder), bounds).run()
