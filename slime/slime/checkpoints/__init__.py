"""Checkpoint folders: written whole or not at all, by ranks that succeed or fail together."""
