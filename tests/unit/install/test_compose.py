"""compose.yaml and its board: what they name exists, nothing listens beyond this machine, and a stopped run goes on.

No container is started here; ``python -m tests.images`` runs the services. Commands of the file run in a shell, with stand-ins for the programs.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.images.files import Services, health_of, plain, read_services

HOME = "/home/openclaw/openclaw-rl"


@pytest.fixture
def services(repository: Path) -> Services:
    return read_services(repository)


def test_what_is_mounted_and_built_exists(repository: Path, services: Services) -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (repository / "Dockerfile").read_text(), re.M)
    named = set(yaml.safe_load((repository / "compose.yaml").read_text())["volumes"])
    for name, service in services.items():
        if "build" in service:
            assert service["build"]["target"] in targets
            assert service["image"] == f"openclaw-rl:{service['build']['target']}"
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in named or source == "./models" or (repository / source).exists(), (name, source)
    made = "RUN mkdir runs models"
    assert (repository / "Dockerfile").read_text().count(made) == len(targets), "else root owns the volumes' folders"


def test_nothing_listens_beyond_this_machine(services: Services) -> None:
    assert all(service["network_mode"] == "host" and "ports" not in service for service in services.values())
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert not {"HOST", "OPENCLAW_HOST"} & {
        name for service in services.values() for name in service.get("environment", {})
    }


@pytest.mark.parametrize("name", ["run-cpu", "run-gpu"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_run_begins_or_goes_on(
    name: str, checkpoint: bool, repository: Path, services: Services, tmp_path: Path
) -> None:
    service = services[name]
    variables = {key: plain(str(value)) for key, value in service["environment"].items()}
    script = variables["SCRIPT"].split()[0]
    assert (repository / script).is_file()
    assert variables["RUN_DIR"].startswith(f"{HOME}/runs/")
    assert f"runs:{HOME}/runs" in service["volumes"], "the run outlives its container"
    run_dir = tmp_path / "runs" / "compose"
    (run_dir / "checkpoints").mkdir(parents=True)
    if checkpoint:
        (run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    (tmp_path / script).parent.mkdir()
    (tmp_path / script).write_text('echo "$PORT|${RESUME:-}|$*"\n')
    command = [plain(word) for word in service["command"]]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**variables, "RUN_DIR": str(run_dir), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = " ".join(variables["SCRIPT"].split()[1:])
    assert done.stdout == f"30000|{'1' if checkpoint else ''}|{words}\n"


def test_every_service_says_whether_it_is_healthy(services: Services, tmp_path: Path) -> None:
    for name, service in services.items():
        given = {"PORT": "30100", "GRAFANA_PORT": "3100"}
        variables = {key: plain(str(value), given) for key, value in service["environment"].items()}
        words = health_of(service, given)
        program = tmp_path / ("wget" if words[0] == "wget" else "curl")
        program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done | grep ^http\n')
        program.chmod(0o755)
        asked = subprocess.run(
            words, env={**variables, "PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
        ).stdout.strip()
        assert (
            asked
            == {
                "run-cpu": "http://127.0.0.1:30100/healthz",
                "run-gpu": "http://127.0.0.1:30100/healthz",
                "prometheus": "http://127.0.0.1:9090/-/healthy",
                "grafana": "http://127.0.0.1:3100/api/health",
            }[name]
        )


def test_prometheus_finds_the_server_and_its_key(repository: Path, services: Services, tmp_path: Path) -> None:
    service = services["prometheus"]
    path = next(word.partition("=")[2] for word in service["command"] if word.startswith("--storage.tsdb.path="))
    assert f"prometheus:{path}" in service["volumes"], "the image's own path ends with its own command"
    given = {"PORT": "30100", "SGLANG_API_KEY": "s3cret"}
    variables = {key: plain(str(value), given) for key, value in service["environment"].items()}
    *shell, script, name = [plain(word) for word in service["entrypoint"]]
    script = script.replace("/tmp/", f"{tmp_path}/").replace("/bin/prometheus", "echo")
    done = subprocess.run(
        [*shell, script, name, *service["command"]], env={**variables, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == service["command"]
    (job,) = yaml.safe_load((repository / "monitoring" / "prometheus.yml").read_text())["scrape_configs"]
    (file,) = job["file_sd_configs"][0]["files"]
    assert json.loads((tmp_path / Path(file).name).read_text()) == [{"targets": ["127.0.0.1:30100"]}]
    key = tmp_path / Path(job["authorization"]["credentials_file"]).name
    assert key.read_text() == "s3cret"
    assert key.stat().st_mode & 0o077 == 0
    assert "s3cret" not in " ".join(done.args[3:])


def test_every_query_of_the_board_asks_for_a_metric_that_exists(repository: Path) -> None:
    page = (repository / "instructions" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \| (?:counter|gauge) ", page, re.M))
    known |= {f"{name}_bucket" for name in re.findall(r"^\| `(\w+)` \| histogram ", page, re.M)}
    labels = {
        name: set(re.findall(r"`(\w+)`", row))
        for name, row in re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", page, re.M)
    }
    board = json.loads((repository / "monitoring" / "grafana" / "boards" / "openclaw_rl.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    for query in queries:
        (name,) = re.findall(r"openclaw_\w+", query)
        assert name in known, query
        for label in re.findall(r"by \((\w+)\)", query):
            assert label == "le" or label in labels[name], query
    sources = yaml.safe_load((repository / "monitoring/grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"] for source in sources}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places), "no panel hides another"
