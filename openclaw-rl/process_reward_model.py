"""The reward of Binary RL's judge, under its name in guides; it scores evaluation sets, see `openclaw_api_server`."""

from openclaw_api_server import reward_func

__all__ = ["reward_func"]
