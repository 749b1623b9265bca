"""Give the package of the training core the version and the requirements of the project, which ``../pyproject.toml`` declares.

It requires no engine, so in an environment without CUDA it installs nothing more; ``pip install -e '.[serve]'`` adds SGLang.
"""

from pathlib import Path

from setuptools import setup

try:
    import tomllib
except ModuleNotFoundError:  # without requirements, pip names the Python that is needed, and nothing else
    setup(version="0", python_requires=">=3.11")
else:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    setup(
        version=project["version"],
        python_requires=project["requires-python"],
        install_requires=[*project["dependencies"], *extras["train"]],
        extras_require={name: extras[name] for name in ("serve", "megatron", "tracking")},
    )
