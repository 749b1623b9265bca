"""Where a rollout function gets its prompts, and where unfinished groups return to.

Guarantees: the order of `RolloutDataSource`'s prompts depends only on seed and position, and `save`/`load` restore the
position exactly. With a buffer, returned groups are handed out first and are part of the saved state, including
fanned-out ones.
"""

from __future__ import annotations

import abc
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from groundwork.data_rows import read_file, read_json, read_text, split_slice
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.exceptions import CheckpointError
from slime.rollout.before_push import Decision
from slime.rollout.multimodal_prompts import (
    StoredPicture,
    check_places,
    copy_sharing_media,
    drop_long_prompts,
    fresh_copies,
    image_processor_of,
    rendered_prompt,
    with_pictures,
)
from slime.rollout.rm_hub import check_samples
from slime.rollout.stored_pictures import decode, record_of
from slime.utils.data_files import load_data, save_data
from slime.utils.misc import load_function
from slime.utils.types import Sample


class Story(NamedTuple):
    """Lines for a run's terminal: once rollouts can start, and at the end of the run."""

    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()


class DataSource(abc.ABC):
    """The third argument of a rollout function.

    Methods that are not abstract are optional no-ops.
    """

    @abc.abstractmethod
    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Return ``num_samples`` groups."""

    @abc.abstractmethod
    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back."""

    @abc.abstractmethod
    def save(self, rollout_id: int) -> None:
        """Save the position of ``rollout_id``, whose checkpoint is on disk.

        A run resumes from the checkpoint only after this returns; after a loss in between it is called again.
        """

    @abc.abstractmethod
    def load(self, rollout_id: int | None = None) -> None:
        """Restore the position after ``rollout_id``; None or -1 is the start."""

    def before_rollouts(self) -> None:  # noqa: B027
        """Start what rollouts need: engines are up with the trainer's weights. Called again after a restart of the trainer."""

    def story(self) -> Story:
        """Return what the terminal shows about this source; called after `before_rollouts`."""
        return Story()

    def mark(self, rollout_id: int) -> None:  # noqa: B027
        """Record the position when the rollout function returns, because `save` of ``rollout_id`` comes after later rollouts."""

    def weights_live(self, rollout_id: int, version: str) -> None:  # noqa: B027
        """Learn that the engines now serve the weights of ``rollout_id``."""

    def step_refused(self, rollout_id: int, why: str) -> None:  # noqa: B027
        """Learn that the batch of ``rollout_id`` was not trained, because a fuse held its step back."""

    def gate_decided(self, rollout_id: int, decision: Decision) -> None:  # noqa: B027
        """Learn what ``--before-push-path`` decided about the steps of ``rollout_id``; again if they had to be repeated."""

    def step_undone(self, rollout_id: int, why: str) -> None:  # noqa: B027
        """Learn that the steps of ``rollout_id`` were refused and undone; a checkpoint without them follows."""

    def weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> None:  # noqa: B027
        """Learn that someone took back the steps after ``rollout_id`` up to ``from_rollout_id``.

        The engines serve the weights of ``rollout_id`` again, as ``version``. A checkpoint of them follows; if the run ends
        before, this is called again.
        """

    def person_restored(self, person: str, to_version: str, version: str) -> None:  # noqa: B027
        """Learn that someone let ``to_version`` of one person's adapter serve this person again, as ``version``.

        Only with ``--adapter-per-person``. As after `weights_restored`, a checkpoint follows.
        """

    def check(self) -> None:  # noqa: B027
        """Raise to end the run; called every few seconds."""

    def dispose(self) -> None:  # noqa: B027
        """End everything that the data source started."""


def number_of_prompts(source: Any) -> int:
    """Return the prompts per epoch of ``source``: its length, or that of its ``dataset``.

    Raises:
        ConfigError: it has neither.
    """
    sized = source if hasattr(source, "__len__") else getattr(source, "dataset", None)
    if sized is None:
        raise ConfigError(
            f"--num-epoch needs the number of prompts, but {type(source).__name__} has neither a length nor a "
            "dataset; use --num-rollout N"
        )
    return len(sized)


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a ``.jsonl``, ``.json`` (a list) or ``.parquet`` file; ``path@[a:b]`` takes a slice.

    Raises:
        ConfigError: the file does not exist or has another format.
    """
    name, start, end = split_slice(path)
    file = Path(name)
    if not file.is_file():
        raise ConfigError(f"--prompt-data {name}: no such file")
    if file.suffix not in (".jsonl", ".json", ".parquet"):
        raise ConfigError(f"--prompt-data {name}: use a .jsonl, .json or .parquet file")
    try:
        rows = read_json(read_text(file)) if file.suffix == ".json" else list(read_file(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--prompt-data {name}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"--prompt-data {name}: every row must be an object with columns, in .json inside a list")
    return rows[start:end] if file.suffix == ".json" else rows


def rows_to_samples(
    args: Arguments,
    rows: list[dict[str, Any]],
    input_key: str,
    label_key: str | None,
    tool_key: str | None = None,
    longest: int | None = None,
    name: str = "prompt data",
) -> list[Sample]:
    """Return one sample per row, rendered with ``--apply-chat-template``; pictures stay as stored in the file.

    Its ``index`` is the number of the row, from 1.

    Args:
        args: arguments of the run.
        rows: rows of the file.
        input_key: prompt column.
        label_key: label column; None without labels.
        tool_key: tools column; default: ``--tool-key``.
        longest: leave out prompts with more tokens; None keeps all.
        name: of the file, for errors.

    Raises:
        ConfigError: a column is missing, or a row's messages, tools, pictures or metadata are unusable; the message
            names file and row.
    """
    tokenizer = None
    if args.apply_chat_template or longest is not None:
        from groundwork.processors import load_tokenizer

        tokenizer = load_tokenizer(args.hf_checkpoint)
    renderer = image_processor_of(args.hf_checkpoint) if args.multimodal_keys else tokenizer
    samples = []
    for number, row in enumerate(rows, 1):
        for key in (input_key, label_key):
            if key is not None and key not in row:
                raise ConfigError(f"{name}, row {number}: no column {key!r}; it has {', '.join(sorted(row))}")
        prompt, pictures = row[input_key], []
        if args.multimodal_keys:
            prompt, pictures = with_pictures(args, row, prompt, number)
        if args.apply_chat_template and renderer is not None:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            try:
                prompt = rendered_prompt(args, renderer, messages, row.get(tool_key or args.tool_key))
            except ConfigError as error:
                raise ConfigError(f"{name}, row {number}: {error}") from error
            if pictures:
                check_places(f"row {number} of the prompt data", prompt.count(renderer.image_token), pictures)
        label = row[label_key] if label_key else None
        metadata = row.get(args.metadata_key) or {}
        if not isinstance(metadata, dict):
            raise ConfigError(
                f"{name}, row {number}: {args.metadata_key} holds {type(metadata).__name__}, not an object; "
                "name the column of metadata with --metadata-key"
            )
        metadata = dict(metadata)
        if row.get(tool_key or args.tool_key):
            metadata.setdefault("tools", row[tool_key or args.tool_key])
        media = {"images": pictures} if pictures else None
        samples.append(Sample(index=number, prompt=prompt, label=label, metadata=metadata, multimodal_inputs=media))
    return samples if longest is None else drop_long_prompts(args, tokenizer, samples, longest)


class RolloutDataSource(DataSource):
    """Prompts of ``--prompt-data``, epoch after epoch; blank samples without a prompt file."""

    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.epoch_id = 0
        self.sample_offset = 0
        self.sample_group_index = 0
        self.sample_index = 0
        self.metadata: dict[str, Any] = {}
        self._marks: dict[int, dict[str, Any]] = {}
        self._shuffled: tuple[int, list[int]] | None = None  # epoch, order
        self.dataset: list[Sample] | None = None
        if args.rollout_global_dataset:
            if not args.prompt_data:
                raise ConfigError("no prompts: add --prompt-data FILE, or --disable-rollout-global-dataset")
            rows = read_rows(args.prompt_data)
            if not rows:
                raise ConfigError(f"--prompt-data {args.prompt_data} has no rows")
            longest = args.rollout_max_prompt_len
            name = f"--prompt-data {args.prompt_data}"
            self.dataset = rows_to_samples(args, rows, args.input_key, args.label_key, longest=longest, name=name)
            check_samples(args, self.dataset)
            if not self.dataset:
                raise ConfigError(
                    f"--prompt-data {args.prompt_data}: no prompt fits --rollout-max-prompt-len {longest}"
                )

    def __len__(self) -> int:
        return len(self.dataset) if self.dataset is not None else 0

    def _position(self) -> int:
        """Return the index of the next prompt in the file."""
        if not self.args.rollout_shuffle:
            return self.sample_offset
        if self._shuffled is None or self._shuffled[0] != self.epoch_id:
            order = list(range(len(self)))
            random.Random(self.args.rollout_seed + self.epoch_id).shuffle(order)
            self._shuffled = self.epoch_id, order
        return self._shuffled[1][self.sample_offset]

    def _next_prompt(self) -> Sample:
        if self.dataset is None:
            return Sample()
        if self.sample_offset >= len(self.dataset):
            self.epoch_id += 1
            self.sample_offset = 0
        prompt = self.dataset[self._position()]
        self.sample_offset += 1
        return prompt

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return the groups of `get_stored_samples` with decoded pictures."""
        groups = self.get_stored_samples(num_samples)
        for group in groups:
            decode(self.args, group)
        return groups

    def get_stored_samples(self, num_samples: int) -> list[list[Any]]:
        """Return groups of ``--n-samples-per-prompt`` copies of a prompt, with pictures not decoded yet."""
        groups = []
        for _ in range(num_samples):
            group = fresh_copies(self._next_prompt(), self.args.n_samples_per_prompt)
            for sample in group:
                sample.group_index, sample.index = self.sample_group_index, self.sample_index
                self.sample_index += 1
            self.sample_group_index += 1
            groups.append(group)
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Raise: there is no buffer."""
        raise RuntimeError(
            "this data source has no buffer for returned groups; use --data-source-path slime.rollout.data_source.RolloutDataSourceWithBuffer"
        )

    def _state(self) -> dict[str, Any]:
        names = ("sample_offset", "epoch_id", "sample_group_index", "sample_index", "metadata")
        return {name: getattr(self, name) for name in names}

    def _restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @staticmethod
    def _file(root: str, rollout_id: int) -> Path:
        folder = Path(root)
        if (folder / "meta.json").is_file():  # the path is one checkpoint, not their root
            folder = folder.parent
        return folder / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"

    def mark(self, rollout_id: int) -> None:
        """Record the position now: all prompts of ``rollout_id`` were handed out, and none of the next.

        While one rollout is collected, the previous one trains, and a run that is stopped then saves the one before
        that. So three marks are kept.
        """
        kept = {marked: state for marked, state in self._marks.items() if rollout_id - 2 <= marked < rollout_id}
        state = self._state()
        self._marks = {**kept, rollout_id: copy_sharing_media(state, state.get("buffer", []))}

    def save(self, rollout_id: int) -> None:
        """Write the position after ``rollout_id`` to ``<save>/rollout/global_dataset_state_dict_<rollout_id>.pt``.

        Uses the marked position, because the next rollout may already be running; without a mark, the current one.
        """
        state = self._marks.get(rollout_id, self._state())
        self._marks = {marked: kept for marked, kept in self._marks.items() if marked >= rollout_id}
        if not self.args.save or not self.args.rollout_global_dataset:
            return
        file = self._file(self.args.save, rollout_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        save_data(state, part, own=[StoredPicture])
        part.replace(file)

    def load(self, rollout_id: int | None = None) -> None:
        """Restore the position saved for ``rollout_id``.

        Raises:
            CheckpointError: the checkpoint has no position, or one that is damaged or asks for code to run.
        """
        if rollout_id is None or rollout_id < 0 or not self.args.load or not self.args.rollout_global_dataset:
            return
        file = self._file(self.args.load, rollout_id)
        if not file.is_file():
            raise CheckpointError(
                f"{file} is missing, so the position in the prompts cannot be restored; resume from another checkpoint"
            )
        self._restore(load_data(file, own=[StoredPicture]))


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """`RolloutDataSource` that hands out returned groups first. Thread-safe.

    ``outstanding`` may be a function that returns the groups handed out but not part of a rollout yet. They
    are saved with the buffer, so that a resumed run misses none.
    """

    def __init__(self, args: Arguments) -> None:
        super().__init__(args)
        self.buffer: list[list[Any]] = []
        self.outstanding: Callable[[], list[list[Any]]] | None = None
        self._filter = load_function(args.buffer_filter_path) if args.buffer_filter_path else pop_first
        self.lock = threading.RLock()

    def get_stored_samples(self, num_samples: int) -> list[list[Any]]:
        """Return groups from the buffer, then fresh ones."""
        with self.lock:
            groups = self._filter(self.args, None, self.buffer, num_samples) if self.buffer else []
            return [*groups, *super().get_stored_samples(num_samples - len(groups))]

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Put groups of any size and nesting into the buffer."""
        with self.lock:
            self.buffer.extend(group for group in samples if group)

    def _state(self) -> dict[str, Any]:
        with self.lock:
            groups = [*self.buffer, *(self.outstanding() if self.outstanding else [])]
            return {**super()._state(), "buffer": [_to_plain(group) for group in groups]}

    def _restore(self, state: dict[str, Any]) -> None:
        state = dict(state)
        with self.lock:
            self.buffer = [_from_plain(group) for group in state.pop("buffer", [])]
            super()._restore(state)


def undecoded(get_samples: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
    """Return the variant of ``get_samples`` without picture decoding, or a plugin's ``get_samples`` itself."""
    source = getattr(get_samples, "__self__", None)
    if isinstance(source, RolloutDataSource) and type(source).get_samples is RolloutDataSource.get_samples:
        return source.get_stored_samples
    return get_samples


def _to_plain(item: Any) -> Any:
    return [_to_plain(member) for member in item] if isinstance(item, list) else record_of(item)


def _from_plain(item: Any) -> Any:
    return [_from_plain(member) for member in item] if isinstance(item, list) else Sample.from_dict(item)


def pop_first(
    args: Arguments, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int
) -> list[list[Sample]]:
    """Remove the oldest groups from the buffer and return them."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken
