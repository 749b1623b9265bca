"""A launched run with a gate that a test can hold: its users, its processes, and what became of its samples."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from transformers import AutoModelForCausalLM

from lab.testkit.live_run import LiveRun, wait_until
from lab.testkit.processes import alive, assert_all_gone, title_of
from openclaw.ledger.store import Ledger
from slime.checkpoints.versions import saved_versions
from tests.helpers.driver import live_version
from tests.helpers.held_gate import REFUSE, held_file, hold_file, words_of, write_whole

BATCH = 2
SECONDS = 300.0
SCORE = 1e-3
"""Difference of a token's log probability between engine and transformers, in nats; a step moves it by far more."""
SETTINGS = {
    **{
        "BATCH_SIZE": BATCH,
        "NUM_ROLLOUT": 1000,
        "SAVE_INTERVAL": 1,
        "MAX_RESPONSE_LENGTH": 12,
        "LEARNING_RATE": "1e-3",
    },
    **{
        "OPENCLAW_FUSES": "off",
        "OPENCLAW_HYGIENE": "malformed_call",
        "OPENCLAW_GATE_SHARE": 0,
        "OPENCLAW_GATE_OFFER": 1,
        # The kills are of the push that follows a decision; a certificate pushes before it.
        "OPENCLAW_CERTIFICATE": 0,
    },
}
PROMPT_IDS = [9, 8, 7, 6, 5]
TITLES = {"rank": "ray::FSDPTrainActor", "manager": "ray::RolloutManager", "runtime": "-m openclaw.runtime"}


class GatedRun:
    """Owns the run that is up; ``replies`` are the turns that a user has read and rated."""

    def __init__(self, repository: Path, folder: Path, model: Path) -> None:
        self.folder = folder
        self.replies: list[str] = []
        self._ledger: Ledger | None = None
        self._words = map(str, itertools.count())
        self._repository, self._model = repository, model
        self.run = self._start()

    def _start(self, *flags: str, **variables: Any) -> LiveRun:
        own = ("--before-push-path", "tests.helpers.held_gate.decide", "--check-weight-update-equal")
        own += ("--data-source-path", "tests.helpers.held_gate.HeldDataSource", "--max-trainer-restarts", "9")
        own += ("--save-keep", "0", "--save-hf", str(self.folder / "hf-{rollout_id}"))
        own += ("--save-debug-rollout-data", str(self.folder / "dumps/{rollout_id}.pt"))
        return LiveRun(self._repository, self.folder, self._model, "rl", *own, *flags, **SETTINGS, **variables)

    def text(self) -> str:
        """The end of what the driver has printed."""
        return self.run.text()[-3000:]

    def until(self, condition: Any, what: str) -> Any:
        """Wait for a condition; fail when the run ends before."""

        def look() -> Any:
            assert self.run.process.poll() is None, f"the run ended while waiting for {what}:\n{self.text()}"
            return condition()

        return wait_until(look, lambda: f"{what}:\n{self.text()}", SECONDS)

    # Users

    def ask(self) -> str:
        """Send a message and return the reply's id; a user sends it again while the gateway is down."""
        number = len(self.replies)
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"Say {number}."}]}

        def post(path: str, document: dict[str, Any]) -> Any:
            try:
                headers = {"X-Session-Id": f"session-{number}"}
                answer = httpx.post(f"{self.run.base_url}/{path}", json=document, headers=headers, timeout=SECONDS)
            except httpx.TransportError:
                return None
            return answer.json() if answer.status_code == 200 else None

        reply = self.until(lambda: post("chat/completions", body), "a reply")
        self.until(lambda: post("feedback", {"response_id": reply["id"], "thumbs": "up"}), "feedback")
        self.replies.append(reply["id"])
        return reply["id"]

    def feed(self) -> None:
        """Give the run one batch."""
        for _ in range(BATCH):
            self.ask()

    # Moments and kills

    def hold(self, moment: str) -> None:
        """Let the run wait once the moment comes; whoever waits there already goes on."""
        write_whole(hold_file(self.folder, moment), next(self._words))

    def wait_held(self, moment: str) -> None:
        """Wait until the run waits at the moment since the last :meth:`hold`."""
        hold, held = hold_file(self.folder, moment), held_file(self.folder, moment)
        self.until(lambda: words_of(held) == words_of(hold), f"the moment {moment!r}")

    def go_on(self, moment: str) -> None:
        """End the moment."""
        hold_file(self.folder, moment).unlink()

    def refuse(self, all_updates: bool) -> None:
        """Let users' opinions speak against every update from now on, or against none."""
        (self.folder / REFUSE).touch() if all_updates else (self.folder / REFUSE).unlink()

    def member(self, kind: str) -> psutil.Process:
        """The process of that kind; of an engine the one that serves."""
        words = TITLES.get(kind) or f"--port {self.engine_url().rpartition(':')[2]} "
        found = [each for each in self.run.family() if words in title_of(each) + " "]
        assert found, f"no process {words!r}:\n{self.text()}"
        return min(found, key=psutil.Process.create_time)

    def engine_url(self) -> str:
        """Where the policy's engine serves, once the run says so."""

        def lines() -> list[str]:
            return [line for line in self.run.text().splitlines() if line.startswith("policy engine: ")]

        return self.until(lines, "the engine")[-1].split()[-1]

    def kill_driver(self) -> None:
        """End the driver with SIGKILL; nothing that it started stays."""
        family = self.run.family()
        self.run.process.kill()
        self.run.process.wait()
        assert_all_gone(family)

    def resume(self) -> None:
        """Start the run again, at the same address."""
        self.run = self._start("--resume", PORT=self.run.port)

    def stopped_engine(self) -> psutil.Process:
        """Freeze the engine, so that the next push lasts until somebody lets it go on; return it."""
        engine = self.member("engine")
        engine.send_signal(signal.SIGSTOP)
        return engine

    def wait_in_push(self) -> None:
        """Wait until the trainer is in a push."""
        pushing = "ray::FSDPTrainActor.update_weights"
        self.until(lambda: any(pushing in title_of(each) for each in self.run.family()), "the push")

    def command(self, *words: str) -> subprocess.Popen[str]:
        """Start ``openclaw-rl WORD RUN ...``."""
        name, *more = words
        line = [sys.executable, "-m", "openclaw", name, str(self.folder), *more]
        path = os.pathsep.join([str(self._repository), str(self._repository / "slime")])
        pipe = subprocess.PIPE
        return subprocess.Popen(line, env={**os.environ, "PYTHONPATH": path}, stdout=pipe, stderr=pipe, text=True)

    def told(self, *words: str) -> str:
        """Return what ``openclaw-rl WORD RUN ...`` prints; it must succeed."""
        out, error = (command := self.command(*words)).communicate(timeout=SECONDS)
        assert command.returncode == 0, f"{out}{error}{self.text()}"
        return out

    # What is left

    def wait_live(self, version: str) -> None:
        """Wait until the run has told the ledger that the version is live, and the engine says the same."""
        self.until(lambda: self.ledger(lambda it: it.samples.live_weight_version()) == version, f"version {version}")
        self.until(lambda: live_version(self.engine_url()) == version, f"version {version} of the engine")

    def wait_saved(self, rollout_id: int) -> None:
        """Wait for the checkpoint of a rollout."""
        root = self.run.ledger_path.parent
        self.until(lambda: any(each.rollout_id == rollout_id for each in saved_versions(root)), f"save {rollout_id}")

    def ledger(self, ask: Any) -> Any:
        """Return what the ledger answers, over one connection as long as the file is there."""
        if self._ledger is None:
            self._ledger = Ledger(self.run.ledger_path)
        return ask(self._ledger)

    def states(self) -> dict[str, tuple[str, str | None, int | None]]:
        """Return state, reason and batch of each turn's sample."""

        def read(ledger: Ledger) -> dict[str, tuple[str, str | None, int | None]]:
            rows = ledger.database.rows("SELECT turn_id, state, reason, rollout_id FROM samples ORDER BY id")
            assert len({row["turn_id"] for row in rows}) == len(rows), "a turn has two samples"
            return {row["turn_id"]: (row["state"], row["reason"], row["rollout_id"]) for row in rows}

        return self.ledger(read)

    def given(self, rollout_id: int) -> list[int]:
        """Return the samples of a batch that the trainer was given last."""
        dump = torch.load(self.folder / f"dumps/{rollout_id}.pt", weights_only=False)
        return [sample["metadata"]["ledger_id"] for sample in dump["samples"]]

    def optimizer_steps(self, rollout_id: int) -> int:
        """Return the number of optimizer steps in the checkpoint of a rollout."""
        meta = self.run.ledger_path.parent / f"iter_{rollout_id + 1:07d}" / "meta.json"
        return json.loads(meta.read_text())["schedule"]["steps"]

    def serves_weights_of(self, rollout_id: int) -> bool:
        """Whether the engine's scores and its greedy reply are those of the checkpoint's weights, in transformers."""
        wanted = _answer(self.folder / f"hf-{rollout_id}")
        limits = {"temperature": 0.0, "max_new_tokens": len(wanted[0])}
        body = {"input_ids": PROMPT_IDS, "sampling_params": limits, "return_logprob": True}
        answer = httpx.post(f"{self.engine_url()}/generate", json=body, timeout=60.0).json()
        scores = [row[0] for row in answer["meta_info"]["output_token_logprobs"]]
        close = all(abs(own - other) < SCORE for own, other in zip(scores, wanted[1], strict=False))
        return answer["output_ids"] == wanted[0] and close

    def stop(self) -> None:
        """End the run as a user does; nothing stays."""
        family = self.run.family()
        assert self.run.stop() == 0, self.text()
        assert not alive(family)


@torch.no_grad()
def _answer(folder: Path) -> tuple[list[int], list[float]]:
    """Return transformers' greedy reply of up to 8 tokens and their log probabilities."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([PROMPT_IDS])
    told: Any = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8}
    ids = model.generate(prompt, **told, do_sample=False)[0].tolist()
    scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    reply = ids[len(PROMPT_IDS) :]
    return reply, [float(scores[len(PROMPT_IDS) - 1 + place, token]) for place, token in enumerate(reply)]
