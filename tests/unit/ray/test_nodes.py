"""Several machines: who has joined, who is lost, what of the environment travels, and how a machine joins."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested
from slime.args import Arguments
from slime.arguments import build_parser
from slime.arguments.process_environment import JOB_VARIABLE, NOSET
from slime.exceptions import NodeError, NodeLostError
from slime.ray import cluster as cluster_module
from slime.ray import nodes, ray_start, worker_node
from slime.ray.processes import Processes
from slime.ray.ray_start import Part, answers, check_token, node_of_cluster, own_address, split_address, start_command
from slime.ray.trainer import Asked, TrainGroup
from slime.utils.forwarded_environment import forwarded, of_node
from tests.helpers.machines import reserved

if TYPE_CHECKING:
    from ray import ObjectRef

    from slime.ray.placement import ReservedPlacement

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}


def cluster(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Let Ray tell of as many nodes as each of ``rounds`` says, the last one for ever."""
    left = list(rounds)

    def listing() -> list[dict[str, Any]]:
        count = left.pop(0) if len(left) > 1 else left[0]
        return [
            {"NodeID": f"n{number}", "NodeManagerAddress": f"10.0.0.{number}", "Alive": number < count}
            for number in range(4)
        ]

    monkeypatch.setattr(nodes.ray, "nodes", listing)
    monkeypatch.setattr(nodes, "POLL_SECONDS", 0.0)


def test_progress_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    cluster(monkeypatch, 1, 1, 2, 2, 4)
    nodes.wait_for_nodes(4, 60.0, "10.0.0.0:6379")
    assert capsys.readouterr().out.splitlines() == ["1 of 4 nodes", "2 of 4 nodes", "4 of 4 nodes"]


def test_nodes_that_do_not_come_are_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, 3)
    with pytest.raises(NodeError, match=r"3 of 4 nodes after 0 s; start the same script .* 10\.0\.0\.0:6379"):
        nodes.wait_for_nodes(4, 0.0, "10.0.0.0:6379")


def test_a_signal_ends_the_wait_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, 1)
    stop = StopRequested()
    stop._handle(15, None)
    with pytest.raises(Stopped):
        nodes.wait_for_nodes(2, 60.0, "10.0.0.0:6379", stop)


def test_a_lost_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, 2)
    nodes.check_nodes({"n0": "10.0.0.0", "n1": "10.0.0.1"})
    with pytest.raises(NodeLostError, match=r"node 10\.0\.0\.2 left the cluster$"):
        nodes.check_nodes({"n0": "10.0.0.0", "n2": "10.0.0.2"})


def watching(machines: dict[str, str], stop: StopRequested | None = None) -> Processes:
    """Return the processes of a run that also lies on ``machines``."""
    processes = Processes(stop or StopRequested())
    processes.reserved = cast("ReservedPlacement", SimpleNamespace(other_nodes=machines))
    return processes


def test_a_wait_for_an_actor_ends_when_its_node_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, 2, 1)
    monkeypatch.setattr(nodes.ray, "wait", lambda references, timeout: ([], references))
    with pytest.raises(NodeLostError, match=r"10\.0\.0\.1"):
        watching({"n1": "10.0.0.1"}).value(cast("ObjectRef[str]", "never"))


def test_a_wait_for_an_actor_ends_on_a_signal_unless_the_answer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = [False]
    monkeypatch.setattr(nodes.ray, "wait", lambda references, timeout: (references if ready[0] else [], []))
    monkeypatch.setattr(nodes.ray, "get", lambda reference: reference)
    stop = StopRequested()
    stop._handle(15, None)
    with pytest.raises(Stopped):
        watching({}, stop).value(cast("ObjectRef[str]", "in three minutes"))
    ready[0] = True
    assert watching({}, stop).value(cast("ObjectRef[str]", "answer")) == "answer"


def test_a_run_that_lies_on_one_other_machine_watches_it() -> None:
    there, both = reserved("1", "1"), reserved("1", "2")
    assert replace(there, home="1").other_nodes == {}
    assert replace(there, home="2").other_nodes == {"1": "10.0.0.1"}
    assert replace(both, home="1").other_nodes == {"2": "10.0.0.2"}


def test_ranks_that_wait_for_a_lost_machine_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, 2, 1)
    monkeypatch.setattr(nodes.ray, "wait", lambda references, num_returns, timeout: ([], references))
    group = TrainGroup.__new__(TrainGroup)
    group._nodes, group._stop = {"n1": "10.0.0.1"}, None
    with pytest.raises(NodeLostError, match=r"10\.0\.0\.1"):
        group.gather(Asked("init", ["never"]))


@pytest.mark.parametrize(
    "method", ["init", "update_weights", "connect_rollout_engines", "ask", "train", "save", "undo_steps"]
)
def test_a_signal_ends_the_wait_for_a_start_a_push_and_answers_but_not_for_steps(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    cluster(monkeypatch, 1)
    looks: list[int] = []

    def wait(references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        looks.append(1)
        return (references, []) if len(looks) > 3 else ([], references)

    monkeypatch.setattr(nodes.ray, "wait", wait)
    monkeypatch.setattr(nodes.ray, "get", lambda references: references)
    group = TrainGroup.__new__(TrainGroup)
    group._nodes, group._stop = {}, StopRequested()
    group._stop._handle(15, None)
    if method in ("train", "save", "undo_steps"):
        assert group.gather(Asked(method, ["done"])) == ["done"]
    else:
        with pytest.raises(Stopped):
            group.gather(Asked(method, ["late"]))
        assert len(looks) == 1


def test_only_named_variables_travel() -> None:
    shell = {
        **{"PATH": "/bin", "HOME": "/root", "PYTHONPATH": "/code", "NCCL_DEBUG": "INFO", "RAY_AUTH_TOKEN": "secret"},
        **{"WANDB_API_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "SGLANG_API_KEY": "secret", "MY_METHOD": "1"},
    }
    assert forwarded(shell) == {"PYTHONPATH": "/code", "NCCL_DEBUG": "INFO"}
    assert forwarded(shell, ["MY_METHOD"]) == {"PYTHONPATH": "/code", "NCCL_DEBUG": "INFO", "MY_METHOD": "1"}
    assert set(of_node(shell)) == {"PATH", "HOME", "PYTHONPATH", "NCCL_DEBUG", "RAY_AUTH_TOKEN"}
    with pytest.raises(ConfigError, match="--forward-env NOT_THERE: not set"):
        forwarded(shell, ["NOT_THERE"])


@pytest.mark.parametrize("environment", [{}, {"RAY_AUTH_TOKEN": "0" * 32}, {"RAY_AUTH_MODE": "token"}])
def test_a_cluster_without_a_secret_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="openssl rand -hex 32"):
        check_token(environment)
    check_token(TOKEN)


def test_addresses() -> None:
    assert split_address("head:6379") == ("head", 6379)
    for wrong in ("head", ":6379", "head:port"):
        with pytest.raises(ConfigError, match="write host:port"):
            split_address(wrong)
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(head)
        assert own_address(head) == "127.0.0.1"
    assert not answers(head)


def test_the_head_listens_at_its_address_and_the_others_name_it() -> None:
    head = start_command(Part("10.0.0.1:6379", "10.0.0.1", is_head=True, num_gpus=8, cpu=False), Path("/tmp/x"))
    other = start_command(Part("10.0.0.1:6379", "10.0.0.2", is_head=False, num_gpus=8, cpu=True), Path("/tmp/x"))
    assert head[head.index("--head") :][:3] == ["--head", "--port", "6379"]
    assert "--object-store-memory" not in head
    assert other[other.index("--address") + 1] == "10.0.0.1:6379"
    assert other[other.index("--node-ip-address") + 1] == "10.0.0.2"
    assert "--object-store-memory" in other
    assert not any("secret" in word or "token" in word for word in [*head, *other])


def test_the_log_of_an_earlier_run_does_not_tell_that_ray_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "ray-head.log"
    log.write_text("Ray runtime started.\n")
    fails = [sys.executable, "-S", "-c", "import sys; sys.exit('the port is taken')"]
    monkeypatch.setattr(ray_start, "start_command", lambda part, folder: fails)
    part = Part("127.0.0.1:1", "127.0.0.1", is_head=True, num_gpus=1, cpu=True)
    with pytest.raises(NodeError, match=r"did not start .* ends with: the port is taken$"):
        with node_of_cluster(part, TOKEN, log):
            pass


def test_a_machine_gives_up_when_there_is_no_head(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_node, "_POLL_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = ["--head-address", f"127.0.0.1:{port}", "--num-gpus", "1", "--device", "cpu", "--timeout", "0"]
    assert worker_node.main(arguments) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"no head at 127.0.0.1:{port} after 0 s")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert worker_node.main(arguments) == 1
    assert "this machine cannot join: several machines need a secret" in capsys.readouterr().out


def test_a_head_whose_name_is_not_known_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)

    def unknown(host: str) -> str:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(ray_start.socket, "gethostbyname", unknown)
    monkeypatch.setattr(worker_node, "answers", lambda head: False)
    monkeypatch.setattr(worker_node, "_POLL_SECONDS", 0.0)
    assert (
        worker_node.main(["--head-address", "head-0.run:6379", "--num-gpus", "1", "--device", "cpu", "--timeout", "0"])
        == 1
    )
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(
        "up to 0 s for the head at head-0.run:6379 (its name cannot be resolved on this machine yet)"
    )
    assert said[1].startswith("this machine cannot join: the head's name head-0.run cannot be resolved on this machine")
    assert len(said) == 2


def test_a_head_whose_name_is_not_known_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(ray_start.socket, "gethostbyname", unknown)
    args = build_parser().parse_args(["--num-nodes", "2", "--head-address", "head-0.run:6379"])
    with pytest.raises(
        NodeError, match=r"head-0.run cannot be resolved .*Name or service.*; give its IP address as MASTER_ADDR"
    ):
        with cluster_module.ray_cluster(args, num_gpus=1):
            pass


def test_the_flags_of_several_machines_reach_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ["--num-nodes", "3", "--head-address", "10.0.0.1:7000", "--node-timeout", "5"]
    words = [*several, "--forward-env", "MY_METHOD", "--num-gpus-per-node", "4"]
    args = build_parser().parse_args(words)
    args.device, args.run_dir = "cpu", str(tmp_path)
    found: dict[str, Any] = {}

    @contextlib.contextmanager
    def node(part: Part, environment: Any, log: Path) -> Any:
        found["part"] = part
        yield

    monkeypatch.setenv("MY_METHOD", "1")
    monkeypatch.setenv(NOSET, "1")
    monkeypatch.setattr(cluster_module, "node_of_cluster", node)
    monkeypatch.setattr(nodes.ray, "init", lambda **keywords: found.update(keywords))
    monkeypatch.setattr(nodes.ray, "shutdown", lambda: None)
    monkeypatch.setattr(nodes, "wait_for_nodes", lambda *waited: found.update(waited=waited))
    with cluster_module.ray_cluster(args, num_gpus=1):
        assert found["waited"] == (3, 5.0, "10.0.0.1:7000", None)
    assert found["part"] == Part("10.0.0.1:7000", "10.0.0.1", is_head=True, num_gpus=4, cpu=True)
    assert found["runtime_env"]["env_vars"]["MY_METHOD"] == "1"
    assert f"{NOSET} is ignored" in capsys.readouterr().out
    assert NOSET not in os.environ
    assert ray_start.RAY_VARIABLES[NOSET] == "0", "of the other machines"


def joined(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> tuple[Arguments, dict[str, Any]]:
    """Join a cluster of three machines; returns the arguments and what Ray was given."""
    args = build_parser().parse_args(["--ray-address", "10.0.0.1:6379", "--run-dir", str(folder), *words])
    found: dict[str, Any] = {}
    cluster(monkeypatch, 3)
    monkeypatch.setattr(cluster_module, "answers", lambda address: True)
    monkeypatch.setattr(nodes.ray, "init", lambda **keywords: found.update(keywords))
    monkeypatch.setattr(nodes.ray, "shutdown", lambda: found.update(left=True))
    with cluster_module.ray_cluster(args, num_gpus=1):
        assert "left" not in found
    return args, found


def test_a_cluster_that_exists_is_joined_with_its_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", JOB_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name in ("MY_METHOD", "NCCL_DEBUG", "SECRET_KEY"):
        monkeypatch.setenv(name, "1")
    args, found = joined(monkeypatch, tmp_path, "--forward-env", "MY_METHOD")
    assert args.num_nodes == 3
    assert (found["address"], found["left"]) == ("10.0.0.1:6379", True)
    variables = found["runtime_env"]["env_vars"]
    assert (variables["MY_METHOD"], variables["NCCL_DEBUG"]) == ("1", "1")
    assert "SECRET_KEY" not in variables
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_what_a_job_was_given_is_not_given_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NCCL_DEBUG", "HF_HOME"):
        monkeypatch.setenv(name, "of the job")
    monkeypatch.setenv(JOB_VARIABLE, '{"runtime_env": {"env_vars": {"NCCL_DEBUG": "of the job"}}}')
    variables = joined(monkeypatch, tmp_path)[1]["runtime_env"]["env_vars"]
    assert variables["HF_HOME"] == "of the job"
    assert "NCCL_DEBUG" not in variables


def test_a_proxy_is_for_a_cluster_of_one_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--http-proxy works on one machine only, but the cluster has 3"):
        joined(monkeypatch, tmp_path, "--http-proxy", "http://proxy:1")


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    args = build_parser().parse_args(["--ray-address", address])
    with pytest.raises(NodeError, match=f"no Ray cluster answers at {address}; start it there"):
        with cluster_module.ray_cluster(args, num_gpus=1):
            pass


def test_a_run_that_is_given_no_machines_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    args = build_parser().parse_args(["--num-nodes", "2"])
    with pytest.raises(ConfigError, match="needs 2 machines of 8 GPUs but is in no Ray cluster"):
        with cluster_module.ray_cluster(args, num_gpus=1):
            pass
