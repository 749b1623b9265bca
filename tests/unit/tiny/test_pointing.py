"""The agent with eyes: its warm start sees what the real agent loop would send, and is measured by what the environment would read."""

from __future__ import annotations

import base64
import io
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from agentrl.environment import Task
from agentrl.protocol import JsonObject, Observation, StepResult
from agentrl.tasks.gui.actions import read_call
from agentrl.tasks.gui.dom import Element
from agentrl.tasks.gui.miniwob.episode import SCREEN
from groundwork.processors import load_processor
from lab.testkit.agent_rollouts import Talk, talk
from lab.tiny_learning.clicks import ENDED
from lab.tiny_learning.pictures import shipped, warm_start
from lab.tiny_learning.pictures.model import COLUMNS, GRID, ROWS, TOKENS, hidden, patches, see
from lab.tiny_learning.pictures.pages import FAMILIES, KINDS, Page, Screens, described, kind_of, pixels, screens_of
from lab.tiny_learning.pictures.pointing import coordinate, told, trace
from lab.tiny_learning.pictures.tasks import GUI_PICTURES
from lab.tiny_learning.pictures.warm_start import UNUSED, Training, batch_of, moved, near, number_of_token
from lab.tiny_learning.pictures.words import NUMBERS, phrases
from lab.tiny_learning.warm_start import NOTE, WarmStartError
from lab.tiny_models.tokenizer import END
from tests.helpers.agent_stages import staged

ONE = Page(
    "miniwob/click_test_2/train/1000", "Click button ONE.", (135, 179), (115, 159, 40, 40), [("button ONE", 135, 179)]
)
CLOSE = Page(
    "miniwob/click_dialog/train/1000", 'Close the "x".', (90.5, 60.25), (84, 54, 13, 12), [("close", 90.5, 60.25)]
)


def screenshot(page: Page) -> bytes:
    """Return a picture of the screen's size with a black target."""
    picture = numpy.full((2 * SCREEN.height, 2 * SCREEN.width, 3), 255, dtype=numpy.uint8)
    picture[:100] = (255, 255, 0)
    left, top, width, height = (int(2 * value) for value in page.box)
    picture[top : top + height, left : left + width] = 0
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def screens(*pages: Page) -> Screens:
    return Screens(pages, numpy.stack([pixels(screenshot(page)) for page in pages]))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(
        tmp_path_factory.mktemp("training"), {"click_test_2": screens(ONE), "click_dialog": screens(CLOSE)}, 4
    )


@pytest.fixture(scope="module")
def folder(training: Training) -> Path:
    return training.export({"solved": 0.0})


def careless(kinds: int, page: Page = ONE) -> Iterator[Any]:
    """Yield episodes with so many replies."""
    rng = random.Random(0)
    yield from (each for _ in range(100) if len((each := trace(rng, page, careless=True)).steps) == kinds)


class Screenshots(Talk):
    """Shows a screen at the start and after each action that does not end the episode."""

    async def reset(self, task: Task, seed: int) -> Observation:
        await super().reset(task, seed)
        return Observation(text=f"Task: {ONE.instruction}", images=self._show(), data=told())

    async def step(self, action: JsonObject) -> StepResult:
        await super().step(action)
        if read_call(action).name == "terminate":
            return StepResult(observation=Observation(text=ENDED), done=True)
        return StepResult(observation=Observation(text="", images=self._show()), done=False)

    def _show(self) -> tuple[str, ...]:
        return (base64.b64encode(screenshot(ONE)).decode(),)


async def test_an_episode_has_the_ids_and_pixels_of_the_agent_loop(
    tmp_path: Path, training: Training, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = next(each for each in careless(2) if "terminate" in each.steps[1].text)
    environment = type("OwnScreens", (Screenshots,), {**vars(talk(Task("guess", {"steps": 3})))})
    texts = [step.text + END for step in episode.steps]
    async with staged(environment, texts, tmp_path, folder, monkeypatch) as on:
        (sample,) = await on.play()
    encoded = training.coder.policy(episode)
    assert sample.tokens == list(encoded.ids)
    assert encoded.pictures == 2
    start = len(sample.tokens) - sample.response_length
    assert [int(weight) for weight in encoded.weights[start:]] == sample.loss_mask
    assert not any(encoded.weights[:start])
    found = patches(torch.from_numpy(screens(ONE).pictures))
    seen = sample.multimodal_train_inputs["pixel_values"].view(2, GRID[1] * GRID[2], 3, 2, -1)
    assert sample.multimodal_train_inputs["image_grid_thw"].tolist() == [[*GRID]] * 2
    for frame in range(2):
        assert torch.allclose(seen[0, :, :, frame].flatten(1), found[0], atol=1e-6)


def test_every_reply_is_a_call_that_the_environment_reads(training: Training) -> None:
    rng, kinds = random.Random(0), set[str]()
    for _ in range(60):
        for step in trace(rng, CLOSE, careless=True).steps:
            act = training.coder.action(trace(rng, CLOSE, careless=False), training.coder.ids(step.text))
            assert act is not None
            kinds.add(act.name)
            if act.point is not None:
                assert warm_start.on_target(CLOSE, *act.point)
            assert step.good == (act.name == "left_click")
    assert kinds == {"left_click", "mouse_move", "scroll", "terminate"}
    assert training.coder.action(trace(rng, CLOSE, careless=False), training.coder.ids("It is done.")) is None


def test_a_constant_part_of_a_prompt_is_one_token(training: Training) -> None:
    episode = trace(random.Random(0), ONE, careless=False)
    assert len(training.coder.prompt(episode)) - TOKENS < 32
    assert len(training.coder.ids(episode.steps[0].text)) <= 12
    assert (number_of_token(training.tokenizer, len(training.tokenizer)) >= 0).sum() == len(NUMBERS)


def test_the_fast_pass_is_the_models_own(training: Training, folder: Path) -> None:
    processor = load_processor(str(folder))
    assert processor is not None
    episodes = [next(careless(2)), next(careless(1, CLOSE))]
    shown = screens(ONE, CLOSE)
    batch = batch_of(
        [*zip(shown.pages, shown.pictures, strict=True)], [training.coder.policy(each) for each in episodes]
    )
    assert batch.shown.tolist() == [0, 0, 1]
    images = [Image.fromarray(shown.pictures[row]) for row in batch.shown.tolist()]
    media = processor.image_processor(images=images, return_tensors="pt")
    model = training.model.eval()
    kinds = (batch.ids == model.config.image_token_id).int()
    with torch.no_grad():
        own = model.model(
            input_ids=batch.ids,
            mm_token_type_ids=kinds,
            pixel_values=media["pixel_values"],
            image_grid_thw=media["image_grid_thw"],
            use_cache=False,
        ).last_hidden_state
        tokens, deep = see(model, patches(batch.pictures))
        fast = hidden(model, batch.ids, tokens[batch.shown], [each[batch.shown] for each in deep])
    assert torch.allclose(own, fast, atol=1e-4)


def test_a_moved_page_has_its_target_where_it_says(training: Training) -> None:
    rng = random.Random(0)
    places = set[tuple[float, float]]()
    for page in (ONE, CLOSE):
        for _ in range(40):
            there, picture = moved(rng, page, screens(page).pictures[0])
            left, top, width, height = there.box
            assert left >= 0
            assert left + width <= SCREEN.width
            assert top >= 50
            assert top + height <= SCREEN.height + 1
            rows, columns = numpy.nonzero((picture < 40).all(-1))
            assert len(rows)
            middle = (columns.mean() + 0.5, (rows.mean() + 0.5) * SCREEN.height / ROWS)
            assert middle == pytest.approx(there.point, abs=1.0)
            assert there.things == [(page.things[0][0], *there.point)]
            assert warm_start.on_target(there, *coordinate(there))
            places.add(there.point)
    assert len(places) > 40


def test_the_eyes_are_told_what_stands_where(training: Training) -> None:
    shown = screens(ONE)
    batch = batch_of([(ONE, shown.pictures[0])], [training.coder.policy(trace(random.Random(0), ONE, careless=False))])
    cell = 5 * int(179 / SCREEN.height * ROWS / 32) + int(135 / SCREEN.width * COLUMNS / 32)
    assert batch.kinds.nonzero().tolist() == [[0, cell, KINDS.index("button ONE")]]
    assert [NUMBERS[at] for at in batch.places[0, cell].tolist()] == [str(value) for value in coordinate(ONE)]
    assert (batch.places != UNUSED).sum() == 2


def test_near_numbers_count_a_little() -> None:
    shares = near()
    assert torch.allclose(shares.sum(-1), torch.ones(len(NUMBERS)))
    assert shares.argmax(-1).tolist() == [*range(len(NUMBERS))]
    assert 0.1 < shares[20, 21] < shares[20, 20]
    assert shares[20, 23] < 0.001


def test_the_loss_wants_the_targets_number_and_those_beside_it(training: Training) -> None:
    shown = screens(ONE)
    episode = training.coder.policy(trace(random.Random(0), ONE, careless=False))
    batch = batch_of([(ONE, shown.pictures[0])], [episode])
    numbers = number_of_token(training.tokenizer, training.model.lm_head.out_features)
    taken: list[torch.Tensor] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        taken.append(torch.zeros(len(states), len(numbers), requires_grad=True))
        return taken[0]

    own, training.model.lm_head.forward = training.model.lm_head.forward, head
    try:
        warm_start.losses(training.model, training.eyes, batch, numbers)[0].backward()
    finally:
        training.model.lm_head.forward = own
    assert taken[0].grad is not None
    wanted = [int(row.argmin()) for row in taken[0].grad]
    assert training.tokenizer.decode(wanted) == trace(random.Random(0), ONE, careless=False).steps[0].text + END
    across = next(row for row, token in zip(taken[0].grad, wanted, strict=True) if numbers[token] >= 0)
    beside = int(numbers[int(across.argmin())]) + 1
    assert across[int((numbers == beside).nonzero())] < 0 < across[int((numbers == beside + 5).nonzero())]


def test_only_clicks_on_the_target_solve(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    coder, shown = training.coder, {"click_test_2": screens(ONE, CLOSE)}
    there = trace(random.Random(0), ONE, careless=False).steps[0].text

    def say(*texts: str) -> dict[str, float]:
        monkeypatch.setattr(warm_start, "replies", lambda *_: [coder.ids(text) for text in texts])
        return warm_start.measure(None, coder, shown, 2)

    assert say(there, there) == {"solved": 0.5, "pointed": 0.5, "solved_click_test_2": 0.5, "pointed_click_test_2": 0.5}
    assert say(there.replace("left_click", "mouse_move"), "no call")["solved"] == 0
    assert say(there.replace("left_click", "mouse_move"), "no call")["pointed"] == 1


def test_replies_are_sampled_up_to_their_end(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screens(ONE, replace(CLOSE, instruction="Close."))
    model, coder = training.model.eval(), training.coder
    wanted = coder.ids("left_click")
    asked, words = list[int](), model.lm_head.out_features

    def head(states: torch.Tensor) -> torch.Tensor:
        asked.append(len(states))
        return 100.0 * torch.nn.functional.one_hot(torch.tensor([wanted[len(asked) - 1]] * len(states)), words).float()

    monkeypatch.setattr(model.lm_head, "forward", head)
    found = warm_start.replies(model, coder, shown, torch.Generator().manual_seed(0))
    assert wanted[-1] == coder.end
    assert found == [wanted] * 2
    assert asked == [2] * len(wanted), "no token is sampled after the end"


def test_the_shipped_model_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shipped.shipped(GUI_PICTURES)
    note = json.loads((folder / NOTE).read_text())
    assert shipped.passes(note["metrics"]["solved"])
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert [len(tokenizer(text).input_ids) for text in (*phrases(), *NUMBERS)] == [1] * (len(phrases()) + len(NUMBERS))
    monkeypatch.setattr(shipped, "KEYED", 31)
    with pytest.raises(WarmStartError, match="other prompts or pictures"):
        shipped.shipped(GUI_PICTURES)
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    with pytest.raises(WarmStartError, match="has no model"):
        shipped.shipped(GUI_PICTURES)


def test_a_model_that_does_not_pass_the_gate_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "heldout"):
        for family in FAMILIES:
            screens(replace(ONE, name=f"miniwob/{family}/{split}/1000")).save(tmp_path / f"{family}-{split}.npz")
    monkeypatch.setattr(warm_start, "BATCH", 2)
    words = ["warm_start", str(tmp_path / "model"), "--pages", str(tmp_path), "--steps", "1"]
    monkeypatch.setattr(sys, "argv", words)
    for solved in (0.1, 0.7):
        monkeypatch.setattr(warm_start, "measure", lambda *_, solved=solved: {"solved": solved})
        with pytest.raises(SystemExit, match=r"not 0\.2 to 0\.5: no model is written"):
            warm_start.main()
        assert not (tmp_path / "model" / "model").exists()
    monkeypatch.setattr(warm_start, "measure", lambda *_: {"solved": 0.4})
    warm_start.main()
    note = json.loads((tmp_path / "model" / "model" / NOTE).read_text())
    assert (note["key"], note["steps"]) == (shipped.key(), 1)


def test_training_goes_on_where_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "BATCH", 2)
    shown = {"click_test_2": screens(ONE)}
    whole, begun = Training(tmp_path, shown, 2), tmp_path / "begun"
    begun.mkdir()
    first = Training(begun, shown, 2)
    assert first.advance() == whole.advance()
    first.save()
    second = Training(begun, shown, 2)
    assert (second.step, second.spent) == (1, first.spent)
    for (name, one), other in zip(first.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other), name
    for (name, one), other in zip(first.eyes.named_parameters(), second.eyes.parameters(), strict=True):
        assert torch.equal(one, other), name
    for one, other in zip(first._optimizers, second._optimizers, strict=True):
        kept, found = one.state_dict()["state"], other.state_dict()["state"]
        assert kept.keys() == found.keys()
        assert all(torch.equal(kept[at][key], found[at][key]) for at in kept for key in kept[at])
    second.advance()
    assert second.step == 2


def test_pages_are_kept_as_rendered(tmp_path: Path) -> None:
    kept = screens(ONE, CLOSE)
    kept.save(tmp_path / "click_test_2-train.npz")
    found = screens_of(tmp_path, "click_test_2", "train")
    assert numpy.array_equal(found.pictures, kept.pictures)
    assert [(page.name, tuple(page.point), page.family) for page in found.pages] == [
        (ONE.name, ONE.point, "click_test_2"),
        (CLOSE.name, CLOSE.point, "click_dialog"),
    ]
    with pytest.raises(FileNotFoundError, match=r"run python -m lab.tiny_learning\.pictures\.pages"):
        screens_of(tmp_path, "click_dialog", "train")


def element(tag: str, text: str = "", hint: str = "", color: str = "", at: tuple[float, float] = (10, 60)) -> Element:
    return Element(tag, text, "", hint, None, (), color, *at, (at[0] - 5, at[1] - 5, 10, 10))


def test_the_target_is_what_the_instruction_names() -> None:
    found = [
        element("div", hint="color", color="rgb(255, 0, 0)"),
        element("div", hint="color", color="rgb(128, 128, 0)", at=(50, 90)),
    ]
    page = described("miniwob/click_color/train/1000", "Click on the olive colored box.", found)
    assert page.point == (50, 90)
    assert [kind for kind, _, _ in page.things] == ["red", "olive"]
    buttons = [element("button", "ONE"), element("button", "TWO", at=(70, 80))]
    assert described("miniwob/click_test_2/train/1000", "Click button ONE.", buttons).point == (10, 60)
    assert kind_of(element("button", hint="ui-dialog-titlebar-close")) == "close"
    assert kind_of(element("p", "some text")) is None
