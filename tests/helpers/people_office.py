"""A run's folder of people's adapters, written as a trainer does, and what each version must answer."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import save_file

from groundwork.people import mark_of
from slime.args import Arguments
from slime.weight_sync import people
from slime.weight_sync.adapter import adapter_config
from slime.weight_sync.people import adapter_name, folder_of, people_folder
from tests.helpers.adapter_checks import adapters, merged

PEOPLE = 30
PERSONS = [f"person {number}" for number in range(PEOPLE)]


class Office:
    """A run's folder of people, and the model that each version is."""

    def __init__(self, args: Arguments) -> None:
        from transformers import AutoModelForCausalLM

        self.args = args
        people_folder(args.run_dir).mkdir()
        self.base = AutoModelForCausalLM.from_pretrained(args.hf_checkpoint, dtype=torch.float32)
        self.models: dict[str, Any] = {"base": self.base}
        self.newest: dict[str, str] = {}

    def write(self, person: str, number: int) -> str:
        """Write a version of a person as a trainer does, with its own state beside it; return its name."""
        seed = PERSONS.index(person) * 100 + number
        adapter = adapters(self.base, self.args.lora_target_modules, seed)
        name = adapter_name(number, "0123abcd", seed, mark_of(person))
        folder = folder_of(people_folder(self.args.run_dir), name)
        folder.mkdir(parents=True)
        save_file(adapter, folder / people.WEIGHTS)
        save_file({key: torch.zeros_like(value) for key, value in adapter.items()}, folder / "training.safetensors")
        (folder / people.CONFIG).write_text(json.dumps(adapter_config(self.args)))
        self.models[name] = merged(self.base, adapter)
        return name

    def publish(self, person: str, number: int) -> str:
        """Write a version that serves its person from now on; return its name."""
        name = self.write(person, number)
        people.publish(self.args.run_dir, name)
        self.newest[person] = name
        return name
