"""The gate on one rank: snapshots in host memory, the split of probes, greedy replies, and the critic beside the policy.

``test_gate_exact`` compares back ends and ranks with runs that never saw a refused batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from lab.testkit import trainer
from slime.backends.trainer import host_memory
from slime.backends.trainer.host_memory import Changing, Snapshot
from slime.backends.trainer.probing import Continuation, ProbeWork, Rounds, by_whole_passes, stop_ids
from slime.backends.trainer.schedule import Schedule
from slime.utils.probes import Probe
from tests.helpers import gate_ranks, tiny_hybrid, trainer_ranks
from tests.helpers.ppo_ranks import ppo_rollout

CPU = torch.device("cpu")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Snapshot]:
    monkeypatch.setattr(host_memory, "PIECE_BYTES", 24)
    one = Snapshot(CPU)
    yield one
    one.close()


def changing() -> Changing:
    """Weights of several types, two of them views of one memory, and an optimizer that has taken a step."""
    flat = torch.randn(12)
    weights = [torch.nn.Parameter(torch.randn(3, 5)), torch.randn(4, 4).bfloat16(), flat[:6].view(2, 3), flat[6:]]
    optimizer = torch.optim.AdamW([weights[0]], lr=0.1)
    weights[0].grad = torch.ones(3, 5)
    optimizer.step()
    return Changing(weights, [torch.arange(5)], [optimizer], Schedule(trainer.trainer_args("model"), 10))


def copies(of: Changing) -> list[torch.Tensor]:
    return [each.detach().clone() for each in (*of.weights, *host_memory.states_of(of.optimizers), *of.others)]


def spoil(of: Changing) -> None:
    """What a step could do, and more."""
    optimizer = of.optimizers[0]
    for _ in range(2):
        optimizer.step()
    with torch.no_grad():
        for tensor in (*of.weights, *of.others):
            tensor.add_(1)
    optimizer.param_groups[0].update(lr=0.5, step=3)
    of.schedule.steps = 7
    torch.rand(3)


def test_everything_comes_back_and_the_memory_serves_again(kept: Snapshot) -> None:
    of = changing()
    for _ in range(2):
        before, random = copies(of), torch.get_rng_state()
        kept.take(of)
        segment = kept._segment
        spoil(of)
        assert not torch.equal(of.weights[3], before[3])
        kept.put(of)
        assert all(map(torch.equal, copies(of), before))
        assert (of.optimizers[0].param_groups[0]["lr"], of.schedule.steps) == (0.1, 0)
        assert "step" not in of.optimizers[0].param_groups[0]
        assert torch.equal(torch.get_rng_state(), random)
        assert of.weights[2].data_ptr() + 24 == of.weights[3].data_ptr(), "views stay views"
        assert kept._segment is segment


def test_weights_change_places_piece_by_piece(kept: Snapshot) -> None:
    of = changing()
    before = copies(of)
    kept.take(of)
    spoil(of)
    after = copies(of)
    for _ in range(2):
        with kept.swapped(of):
            assert all(map(torch.equal, of.weights, before[: len(of.weights)]))
            assert torch.equal(of.others[0], after[-1]), "only weights are exchanged"
        assert all(map(torch.equal, copies(of), after))
    kept.put(of)
    assert all(map(torch.equal, copies(of), before))


def test_another_model_is_not_restored(kept: Snapshot) -> None:
    kept.take(changing())
    with pytest.raises(RuntimeError, match="other tensors"):
        kept.put(changing()._replace(others=[]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_have_as_many_passes_and_each_probe_once(ranks: int) -> None:
    args = trainer.trainer_args("model", max_tokens_per_gpu=30)
    some = gate_ranks.probes(20)
    works = [ProbeWork(args, some, rank, ranks) for rank in range(ranks)]
    continued = [work.continuations() for work in works]
    assert len({len(batches) for batches in continued}) == 1
    numbers = [each.number for batches in continued for batch in batches for each in batch]
    assert sorted(numbers) == [number for number, probe in enumerate(some) if probe.max_new_tokens]
    passes, scored = [], []

    def score(shard: Any) -> list[torch.Tensor]:
        (step,) = shard.micro_batches
        passes.append(len(step))
        for indices in step:
            wide = max((len(shard.tokens[index]) for index in indices), default=0)
            assert len(indices) <= 1 or wide * len(indices) <= 30
        return [torch.zeros(length) for length in shard.fields["response_lengths"]]

    for work in works:
        scored += work.scores(score)
    assert len(set(passes)) == 1
    assert sorted(scored) == [number for number, probe in enumerate(some) if probe.reply_ids]


@pytest.fixture(scope="module")
def shipped(repository: Path) -> Path:
    return repository / "lab/tiny_models/shipped"


def questions(folder: Path) -> list[Probe]:
    """Prompts of different lengths that the shipped model answers; only the first reply has room to end."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    told = ["hello", "what is 3 plus 4?", "hello and goodbye"]
    chats = [[{"role": "user", "content": text}] for text in told]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    return [Probe(prompt, (), limit) for prompt, limit in zip(ids, (40, 9, 3), strict=True)]


def test_greedy_replies_end_by_themselves_and_are_hugging_faces(shipped: Path) -> None:
    """With the cache and by whole passes."""
    args = trainer.trainer_args(shipped, max_tokens_per_gpu=100)
    actor, _ = trainer_ranks.start_actor(args)
    hf: Any = AutoModelForCausalLM.from_pretrained(shipped)
    cached = actor.ask(False, questions(shipped))
    actor.backend.model.hf._is_stateful = True
    whole = actor.ask(False, questions(shipped))
    actor.shutdown()
    assert cached == whole
    for number, probe in enumerate(questions(shipped)):
        prompt = torch.tensor([probe.prompt_ids])
        reply = hf.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=probe.max_new_tokens, do_sample=False
        )
        assert cached[number].greedy_ids == reply[0, prompt.size(1) :].tolist()
        assert cached[number].finished == (cached[number].greedy_ids[-1] == 2)
    assert [answer.finished for _, answer in sorted(cached.items())] == [True, False, False]


def test_a_model_with_a_state_is_asked_by_whole_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear attention keeps more than keys and values."""
    folder = tiny_hybrid.build(tmp_path)
    passes: list[int] = []

    def counted(batch: list[Continuation], rounds: Rounds, next_ids: Any) -> None:
        passes.append(len(batch))
        by_whole_passes(batch, rounds, next_ids)

    monkeypatch.setattr("slime.backends.fsdp_utils.backend.by_whole_passes", counted)
    actor, _ = trainer_ranks.start_actor(trainer.trainer_args(folder, max_tokens_per_gpu=60, pack_sequences=False))
    answers = actor.ask(False, gate_ranks.probes())
    actor.shutdown()
    hf = AutoModelForImageTextToText.from_pretrained(folder)
    for number, probe in enumerate(gate_ranks.probes()):
        if probe.max_new_tokens:
            ids = torch.tensor([[*probe.prompt_ids, *answers[number].greedy_ids]])
            with torch.no_grad():
                likely = hf(input_ids=ids, use_cache=False).logits[0].argmax(-1)
            assert answers[number].greedy_ids == likely[len(probe.prompt_ids) - 1 : -1].tolist()
    assert sum(passes) == 4


def test_the_candidate_is_itself_after_the_serving_version_was_asked(tiny_random_model: Path) -> None:
    """A forward pass leaves the root's parameters gathered; they must be neither asked nor pushed as the candidate's."""
    args = trainer.trainer_args(tiny_random_model, train_dtype="bfloat16", lr=1e-2)  # FSDP on one rank, too
    actor, _ = trainer_ranks.start_actor(args)
    actor.take_snapshot()
    actor.train(0, trainer.shards(args, trainer.train_data(seed=0), 1)[0])
    weights = {name: value.clone() for name, value in actor.backend.weights()}
    candidate = actor.ask(False, gate_ranks.probes())
    served = actor.ask(True, gate_ranks.probes())
    assert all(torch.equal(weights[name], value) for name, value in actor.backend.weights()), "what a push would send"
    assert actor.ask(False, gate_ranks.probes()) == candidate
    assert served != candidate
    actor.undo_steps()
    assert actor.ask(False, gate_ranks.probes()) == served
    actor.shutdown()


def test_the_generation_configs_ids_end_a_reply(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 5}}))
    assert stop_ids(tmp_path) == {5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert stop_ids(tmp_path) == {7, 8}
    reply = Continuation(0, [1], 3)
    for token in (3, 8, 4):
        reply.add(token, stop_ids(tmp_path))
    assert (reply.reply, reply.finished) == ([3, 8], True)
    reply = Continuation(0, [1], 2, [3, 4])
    assert not reply.open
    assert not reply.finished


def test_the_critic_goes_back_too(tiny_random_model: Path) -> None:
    changes = {"advantage_estimator": "ppo", "critic_lr": 1e-2}
    args = trainer.trainer_args(tiny_random_model, **changes)
    actor, start = trainer_ranks.start_actor(args)
    critic = trainer_ranks.start_critic(args, 0, 1, start)

    def train(seed: int) -> None:
        ppo_rollout(actor, critic, seed, trainer.shards(args, trainer.train_data(seed=seed), 1)[0])

    train(0)
    before = [gate_ranks.state_of(role) for role in (actor, critic)]
    for role in (actor, critic):
        role.take_snapshot()
    train(1)
    assert not any(
        gate_ranks.same(gate_ranks.state_of(role), old) for role, old in zip((actor, critic), before, strict=True)
    )
    for role in (actor, critic):
        role.undo_steps()
        role.undo_steps()
    assert all(
        gate_ranks.same(gate_ranks.state_of(role), old) for role, old in zip((actor, critic), before, strict=True)
    )
    actor.shutdown()
