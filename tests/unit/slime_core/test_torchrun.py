"""A launcher of ranks starts a program many times: one process goes on, and the launcher ends as it does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slime.arguments.torchrun import refuse_many_starts, words_of_launcher

pytestmark = pytest.mark.slow

PROGRAM = "slime/train_grpo.py"
OF_TORCHRUN = {
    **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    **{"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "0"},
}
OF_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("LOCAL_RANK", "0"), ("LOCAL_SIZE", "4"), ("SIZE", "4"))}


def of_rank(environment: dict[str, str], rank: int) -> dict[str, str]:
    return {name: str(rank) if name.endswith("LOCAL_RANK") else value for name, value in environment.items()}


@pytest.mark.parametrize(("environment", "ranks"), [(OF_TORCHRUN, "8"), (OF_MPI, "4")])
def test_the_first_process_goes_on_with_the_ranks_that_were_asked_for(
    environment: dict[str, str], ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {**environment, "PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert words_of_launcher([PROGRAM, "--lr", "1e-6"], own) == ["--actor-num-gpus-per-node", ranks, "--colocate"]
    assert own == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}, "nothing leads its own ranks to the launcher's rendezvous"
    assert capsys.readouterr().err == (
        f"train_grpo.py: torchrun or mpirun started {ranks} of it; this one goes on and starts the ranks with "
        f"--actor-num-gpus-per-node {ranks} --colocate; the others end\n"
    )


@pytest.mark.parametrize("environment", [OF_TORCHRUN, OF_MPI])
def test_the_others_end_in_silence_and_without_a_failure(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        words_of_launcher([PROGRAM], of_rank(environment, 3))
    assert ended.value.code == 0, "a failure would end the first process too"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("typed", "added"),
    [
        (["--actor-num-gpus-per-node", "2", "--rollout-num-gpus", "6"], []),
        (["--actor-num-gpus-per-node=2"], []),
        (["--rollout-num-gpus", "2"], ["--actor-num-gpus-per-node", "8"]),
        (["--colocate"], ["--actor-num-gpus-per-node", "8"]),
    ],
)
def test_what_a_user_typed_about_placement_stays(typed: list[str], added: list[str]) -> None:
    assert words_of_launcher([PROGRAM, *typed], dict(OF_TORCHRUN)) == added


def test_a_program_that_collects_and_trains_at_once_shares_no_gpus() -> None:
    assert words_of_launcher([PROGRAM], dict(OF_TORCHRUN), alternates=False) == ["--actor-num-gpus-per-node", "8"]


@pytest.mark.parametrize("environment", [{**OF_TORCHRUN, "WORLD_SIZE": "16"}, {**OF_MPI, "OMPI_COMM_WORLD_SIZE": "8"}])
def test_several_machines_are_refused_in_one_line(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, lines in ((0, 1), (1, 0)):
        with pytest.raises(SystemExit) as ended:
            words_of_launcher([PROGRAM], of_rank(environment, rank))
        said = capsys.readouterr().err
        assert (ended.value.code, said.count("\n")) == (2, lines)
        assert rank or "see instructions/cluster.md for several machines" in said


@pytest.mark.parametrize(
    "environment",
    [
        OF_TORCHRUN,
        {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        {"LOCAL_RANK": "0", "WORLD_SIZE": "2"},
        OF_MPI,
    ],
)
def test_a_program_without_ranks_refuses_in_one_line(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        refuse_many_starts(environment)
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert "starts all of its processes itself" in said
    with pytest.raises(SystemExit):
        refuse_many_starts(of_rank(environment, 3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "environment", [{}, {"WORLD_SIZE": "8"}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "0", "WORLD_SIZE": "1"}]
)
def test_one_process_with_such_variables_is_nobodys(environment: dict[str, str]) -> None:
    refuse_many_starts(environment)
    assert words_of_launcher([PROGRAM], dict(environment)) == []


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--rollout-batch-size", "0"), 1)])
def test_torchrun_starts_one_program_and_ends_as_it_does(repository: Path, flags: tuple[str, ...], code: int) -> None:
    words = "--hf-checkpoint m --rollout-batch-size 32 --num-rollout 1 --disable-rollout-global-dataset --device cpu"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--nnodes=1", "--node_rank=0"]
    command += ["--master_addr=localhost", "--master_port=0", PROGRAM, *words.split(), "--dry-run", *flags]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("this one goes on") == 1
    assert done.stdout.count("nothing was started") == 1 - code
    assert code or re.search(r"actor +GPU 0-1 +2 rank\(s\)", done.stdout)
