"""The float32 reference, the rule that tells rounding from a fault, and the sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from benchmarks import parity
from benchmarks.parity_parts import engine_order, sides
from benchmarks.parity_parts.errors import FACTOR, TEMPERATURE, Errors, in_float32, log_probs
from benchmarks.parity_parts.sides import CHOICES, REFERENCE, Answer
from tests.helpers.engine_streams import Stream, checked
from tests.helpers.tolerance import MODEL, tolerance

NEAR = tolerance(10.0, roundings=MODEL)
"""Of log probabilities in float32."""
PROMPT, TOKENS = 8, 400


@cache
def model(seed: int = 0) -> Any:
    """A Qwen3 of four layers in bfloat16."""
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, initializer_range=0.1, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(seed)
    made = Qwen3ForCausalLM(config).eval()
    for parameter in made.parameters():  # and not the rotary frequencies, which a checkpoint does not have
        parameter.data = parameter.data.bfloat16()
    return made


@cache
def tokens() -> tuple[list[int], list[int]]:
    ids = torch.randint(0, 512, (PROMPT + TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    return ids[:PROMPT], ids[PROMPT:]


def by(function: Callable[..., Tensor], of: Any, temperature: float = TEMPERATURE) -> Tensor:
    return function(of, *tokens(), temperature)


def test_the_reference_is_float64s_within_float32s_rounding() -> None:
    double = model().__class__(model().config).double().eval()
    double.load_state_dict(model().state_dict())
    prompt, ids = tokens()
    with torch.no_grad():
        table = (double(torch.tensor([prompt + ids])).logits[0, PROMPT - 1 : -1] / TEMPERATURE).log_softmax(-1)
    expected = table.gather(-1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(by(log_probs, in_float32(model())).double(), expected, atol=NEAR, rtol=0)


def test_an_engines_order_is_the_same_function() -> None:
    exact = in_float32(model())
    torch.testing.assert_close(by(engine_order.log_probs, exact), by(log_probs, exact), atol=NEAR, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_another_order_of_roundings_is_accepted(seed: int) -> None:
    exact = by(log_probs, in_float32(model(seed)))
    own, engine = (Errors.of(by(way, model(seed)) - exact) for way in (log_probs, engine_order.log_probs))
    assert own.mean > 100 * NEAR
    assert own.mean != engine.mean
    assert engine.within(own)


def other_epsilon(found: Any) -> None:
    for module in found.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-2


def other_version(found: Any) -> None:
    for parameter in found.parameters():
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        parameter.data += (0.02 * 0.1 * noise).to(parameter.dtype)


def other_rotation(found: Any) -> None:
    found.model.rotary_emb.inv_freq *= 0.99


@pytest.mark.parametrize("fault", [other_epsilon, other_version, other_rotation], ids=lambda fault: fault.__name__)
def test_a_fault_is_not_taken_for_rounding(fault: Callable[[Any], None]) -> None:
    exact, own = by(log_probs, in_float32(model())), by(log_probs, model())
    wrong = model.__wrapped__()
    fault(wrong)
    assert not Errors.of(by(log_probs, wrong) - exact).within(Errors.of(own - exact))


def test_a_temperature_that_is_missing_and_two_wrong_tokens_in_a_hundred_show() -> None:
    exact, own = by(log_probs, in_float32(model())), by(log_probs, model())
    limits = Errors.of(own - exact)
    assert not Errors.of(by(log_probs, model(), 1.0) - exact).within(limits)
    few = own.clone()
    few[::50] += 20 * limits.worst
    assert not Errors.of(few - exact).within(limits)


def test_tests_of_an_engine_take_its_rounding_and_no_other_version(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, ids = tokens()
    other = model.__wrapped__()
    other_version(other)

    def sampled(by_model: Any, version: str) -> Stream:
        spans = [{"version": version, "start": 0, "end": len(ids)}]
        values = by(engine_order.log_probs, by_model).tolist()
        return Stream(prompt, ids, values, {"meta_info": {"weight_versions": spans}})

    found = checked([sampled(model(), "2"), sampled(other, "1")], [model(), other], None, "streams")
    assert len(found) == 2 * TOKENS
    assert '"name": "engine/streams/from float32, mean"' in capsys.readouterr().out
    with pytest.raises(AssertionError, match=r"streams: the engine is .* from float32, the trainer"):
        checked([sampled(other, "2")], [model(), other], None, "streams")


def test_errors_are_of_absolute_values() -> None:
    found = Errors.of(torch.tensor([-3.0, 1.0] + [0.0] * 99))
    assert found == Errors(pytest.approx(4 / 101), 1.0, 3.0)
    assert found.within(Errors(4 / 101 / FACTOR, 1 / FACTOR, 0.0))
    assert not found.within(Errors(4 / 101 / FACTOR, 0.99 / FACTOR, 3.0))


def test_every_choice_is_one_that_a_start_takes(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime.arguments.trainer._is_installed", lambda _: True)
    names = ("fused_kernels", "attn_implementation", "logprob_kernel", "lora_kernel")
    seen = set()
    for words in CHOICES.values():
        args, problems = sides.arguments(words, str(tiny_random_model), "cuda")
        assert problems == []
        assert args.rollout_temperature == TEMPERATURE
        seen.add(tuple(getattr(args, name) for name in names))
        on_cpu = sides.arguments(words, str(tiny_random_model), "cpu")[1]
        assert not on_cpu or all("needs a GPU" in line for line in on_cpu)
    assert len(seen) == len(CHOICES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint in bfloat16."""
    path = tmp_path_factory.mktemp("parity")
    model().save_pretrained(path)
    return str(path)


def answers() -> list[Answer]:
    prompt, ids = tokens()
    return [Answer(prompt, ids[start : start + 40]) for start in (0, 50, 100)]


@pytest.mark.parametrize("name", [REFERENCE, "LoRA, peft", "LoRA, fused"])
def test_the_trainer_in_float32_is_its_reference(folder: str, name: str) -> None:
    args, problems = sides.arguments(CHOICES[name], folder, "cpu")
    assert problems == []
    found, exact = sides.by_trainer(args.changed(train_dtype="float32"), answers())
    base = sides.exact_log_probs(folder, "cpu", answers())
    assert (exact is not None) == args.use_lora
    if exact is not None:
        assert float((exact - base).abs().max()) > 100 * NEAR, "the adapters change nothing"
    torch.testing.assert_close(found, base if exact is None else exact, atol=NEAR, rtol=0)


def test_pushed_weights_are_the_references(folder: str) -> None:
    weights = dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    same = sides.exact_log_probs(folder, "cpu", answers(), weights)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] * 1.5
    other = sides.exact_log_probs(folder, "cpu", answers(), weights)
    assert torch.equal(same, sides.exact_log_probs(folder, "cpu", answers()))
    assert not torch.allclose(other, same)


def test_each_side_is_held_to_what_it_is_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    exact, adapted, noise = torch.zeros(100), torch.ones(100), torch.linspace(-1, 1, 100)
    found = {
        REFERENCE: (0.1 * noise, exact),
        "attention varlen": (0.16 * noise, exact),
        "LoRA, peft": (adapted + 0.2 * noise, adapted),
        "LoRA, fused": (adapted + 0.29 * noise, adapted),
        parity.ENGINE: (-0.14 * noise, exact),
    }
    rows = {row["side"]: row for row in parity.compared(found)}
    assert {name for name, row in rows.items() if not row["accepted"]} == {"attention varlen"}
    assert rows[REFERENCE]["from_engine"]["worst"] == pytest.approx(0.24)
    assert "from_engine" not in rows["LoRA, peft"]
    assert "attention varlen           0.0808 on average" in capsys.readouterr().out


@pytest.mark.parametrize(("side", "expected"), [(parity.ENGINES_ORDER, 0), (parity.ENGINE, 1), ("LoRA, peft", 1)])
def test_the_exit_status_is_of_the_engine_and_the_choices(side: str, expected: int) -> None:
    rows = [{"side": REFERENCE, "accepted": True}, {"side": side, "accepted": False}]
    assert parity.status(rows) == expected


def refusing(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Let one choice be refused, and compute nothing."""
    flags = CHOICES[refused]
    monkeypatch.setattr(parity, "arguments", lambda words, *rest: (None, ["no such kernel"] if words == flags else []))
    monkeypatch.setattr(
        parity,
        "in_own_process",
        lambda function, *rest: (torch.zeros(2), None) if function is sides.by_trainer else torch.zeros(2),
    )


def test_a_reference_that_cannot_run_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, REFERENCE)
    with pytest.raises(SystemExit, match=r"as written.*does not run: no such kernel"):
        parity.sides("model", "cuda", answers())


def test_a_choice_that_is_compared_with_a_refused_one_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "LoRA, peft")
    monkeypatch.setattr(parity.importlib.util, "find_spec", lambda name: name)
    found, refused = parity.sides("model", "cuda", answers())
    assert refused.keys() == {"LoRA, peft", "LoRA, fused"}
    assert not found.keys() & refused.keys()
