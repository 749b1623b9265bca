"""Require the release of megatron-core that ``../pyproject.toml`` declares; this folder has no code of its own."""

from pathlib import Path

from setuptools import setup

try:
    import tomllib
except ModuleNotFoundError:  # without requirements, pip names the Python that is needed, and nothing else
    setup(version="0", python_requires=">=3.11")
else:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    setup(
        version=project["version"],
        python_requires=project["requires-python"],
        install_requires=project["optional-dependencies"]["megatron"],
    )
