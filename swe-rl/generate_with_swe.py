"""``generate`` and ``reward_func`` under the module name of the one-machine script."""

from generate_with_swe_remote import generate, reward_func

__all__ = ["generate", "reward_func"]
