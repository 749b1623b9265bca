"""What the run of images without Docker reads: instructions, what an image leaves out, variables of compose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.images import root
from tests.images.files import health_of, left_out, plain, read_stages, sources
from tests.images.root import local_indexes

DOCKERFILE = """# two targets
FROM debian:bookworm AS one
RUN apt-get update \\
    && apt-get install git
USER someone
COPY --chown=a:b first second place/
FROM one AS two
CMD ["bash"]
"""


def test_instructions_are_read_by_target(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    stages = read_stages(tmp_path)
    assert [stage.base for stage in stages.values()] == ["debian:bookworm", "one"]
    assert stages["one"].instructions[:2] == [
        ("RUN", "apt-get update && apt-get install git"),
        ("USER", "someone"),
    ]
    assert sources(stages["one"].all("COPY")[0]) == ["first", "second"]
    assert stages["two"].all("CMD") == ['["bash"]']


@pytest.mark.parametrize(
    ("path", "out"),
    [("runs", True), ("a/runs", False), ("a/__pycache__", True), ("x.log", True), ("a/b.log", True), ("a/b.py", False)],
)
def test_an_image_gets_what_dockerignore_leaves(tmp_path: Path, path: str, out: bool) -> None:
    (tmp_path / ".dockerignore").write_text("runs\n**/__pycache__\n**/*.log\n")
    assert left_out(tmp_path, path) is out


def test_a_command_is_handed_on_as_compose_does() -> None:
    assert plain("${A:-x} ${B:-y} ${C} $$A", {"A": "1"}) == "1 y  $A"
    assert health_of({"healthcheck": {"test": ["CMD-SHELL", "echo $$A"]}}) == ["/bin/sh", "-c", "echo $A"]
    assert health_of({"healthcheck": {"test": ["CMD", "true", "a"]}}) == ["true", "a"]


def test_folders_of_packages_are_found_in_the_settings_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wheels", "index/simple"):
        (tmp_path / name).mkdir(parents=True)
    settings = {
        "find-links": f"{tmp_path}/wheels {tmp_path}/gone",
        "extra-index-url": f"file://{tmp_path}/index/simple https://host.example/{tmp_path}/wheels",
    }
    monkeypatch.setattr(root, "pip_settings", lambda: settings)
    assert local_indexes() == [tmp_path / "wheels", tmp_path / "index"]
