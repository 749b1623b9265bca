"""The layout of roles on GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import Placement, describe_placement
from slime.backends.sglang_utils.engine_process import process_environment
from slime.ray.engine_group import by_machine
from slime.ray.placement import ACTOR_GPU_SHARE, ENGINE_GPU_SHARE, ReservedPlacement, Seen, sorted_bundles


def arguments(**changes: Any) -> Arguments:
    values = {
        "debug_rollout_only": False,
        "debug_train_only": False,
        "colocate": False,
        "actor_num_nodes": 1,
        "actor_num_gpus_per_node": 4,
        "rollout_num_gpus": 2,
        "rollout_num_gpus_per_engine": 2,
        "prm_enable": True,
        "prm_num_gpus": 2,
        "prm_num_gpus_per_engine": 2,
        "num_gpus": 8,
    }
    return Arguments(**{**values, **changes})


def test_one_gpu_is_shared_by_all_roles() -> None:
    one = {"actor_num_gpus_per_node": 1, "rollout_num_gpus": 1, "prm_num_gpus": 1, "num_gpus": 1}
    per_engine = {"rollout_num_gpus_per_engine": 1, "prm_num_gpus_per_engine": 1}
    placement = describe_placement(arguments(share_gpu=True, **one, **per_engine))
    assert (placement.actor, placement.rollout, placement.judge) == ((0,), (0,), (0,))
    assert placement.total == 1
    assert ACTOR_GPU_SHARE + 2 * ENGINE_GPU_SHARE <= 1
    with pytest.raises(ConfigError, match="need 3"):
        describe_placement(arguments(**one, **per_engine))


def test_eight_gpus_are_four_two_two() -> None:
    placement = describe_placement(arguments())
    assert (placement.actor, placement.rollout, placement.judge) == ((0, 1, 2, 3), (4, 5), (6, 7))
    assert placement.total == 8
    assert [(engine.name, engine.gpu_ids) for engine in placement.engines("prm")] == [("engine-prm-0", (6, 7))]
    assert [line.split()[:3] for line in placement.lines()] == [
        ["actor", "GPU", "0-3"],
        ["rollout", "GPU", "4-5"],
        ["judge", "GPU", "6-7"],
    ]


def test_several_engines_share_the_gpus_of_their_role() -> None:
    engines = describe_placement(arguments(rollout_num_gpus_per_engine=1)).engines("policy")
    assert [engine.gpu_ids for engine in engines] == [(4,), (5,)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"debug_train_only": True}, ((0, 1, 2, 3), (), ())),
        ({"debug_rollout_only": True}, ((), (0, 1), (2, 3))),
        ({"colocate": True, "rollout_num_gpus": 4}, ((0, 1, 2, 3), (0, 1, 2, 3), (4, 5))),
        ({"prm_enable": False}, ((0, 1, 2, 3), (4, 5), ())),
        ({"actor_num_nodes": 2, "num_gpus": None}, (tuple(range(8)), (8, 9), (10, 11))),
    ],
)
def test_modes(changes: dict[str, Any], expected: tuple[tuple[int, ...], ...]) -> None:
    placement = describe_placement(arguments(**changes))
    assert (placement.actor, placement.rollout, placement.judge) == expected


def test_the_critic_stands_between_actor_and_rollout() -> None:
    critic = {"use_critic": True, "critic_num_nodes": 1, "critic_num_gpus_per_node": 2, "num_gpus": 10}
    placement = describe_placement(arguments(**critic))
    assert (placement.actor, placement.critic) == ((0, 1, 2, 3), (4, 5))
    assert (placement.rollout, placement.judge, placement.total) == ((6, 7), (8, 9), 10)
    assert placement.lines()[1].split() == ["critic", "GPU", "4-5", "2", "rank(s)"]
    alone = describe_placement(arguments(**critic, debug_train_only=True))
    assert (alone.critic, alone.rollout, alone.total) == ((4, 5), (), 6)
    assert describe_placement(arguments(**critic, debug_rollout_only=True)).critic == ()
    with pytest.raises(ConfigError, match=r"actor 4 [+] critic 2 [+] rollout 2 [+] judge 2 GPUs need 10"):
        describe_placement(arguments(**{**critic, "num_gpus": 9}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpus": 7}, "need 8, --num-gpus is 7"),
        ({"rollout_num_gpus": 3}, "--rollout-num-gpus 3 is not a multiple"),
        ({"prm_num_gpus": 3}, "--prm-num-gpus 3 is not a multiple"),
    ],
)
def test_an_impossible_split_names_the_flag(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_placement(arguments(**changes))


ADDRESSES = {"a": "10.0.0.2", "b": "10.0.0.10"}


def seen(node: str, gpu: str, visible: str | None = None, *problems: str) -> Seen:
    return Seen(node, gpu, visible, 16, problems)


def test_bundles_are_in_the_order_of_machines_and_their_gpus() -> None:
    found = sorted_bundles([seen("b", "0"), seen("a", "10"), seen("a", "9"), seen("b", "1")], ADDRESSES)
    assert [(bundle.node_ip, bundle.gpu_id) for bundle in found] == [
        ("10.0.0.2", 9),
        ("10.0.0.2", 10),
        ("10.0.0.10", 0),
        ("10.0.0.10", 1),
    ]
    assert [bundle.bundle_index for bundle in found] == [2, 1, 0, 3]


def test_an_engine_gets_gpus_by_their_uuids() -> None:
    uuids = ("GPU-f0", "GPU-a1", "GPU-c2")
    visible = ",".join(uuids)
    found = sorted_bundles([seen("a", uuid, visible) for uuid in ("GPU-c2", "GPU-f0", "GPU-a1")], ADDRESSES)
    assert tuple(bundle.gpu_id for bundle in found) == uuids, "as the machine lists them"
    placement = Placement(actor=(0,), rollout=(1, 2), judge=(), rollout_gpus_per_engine=2)
    reserved = ReservedPlacement(placement, None, tuple(found), "a")
    args = Arguments(device="cuda", num_nodes=1, num_gpus_per_node=3)
    ((first, spec),) = by_machine(args, reserved, placement.engines("policy")[0])
    assert first == 1
    assert process_environment(args, spec, {})["CUDA_VISIBLE_DEVICES"] == "GPU-a1,GPU-c2"


def test_ranks_of_actor_and_critic_share_a_machine() -> None:
    bundles = sorted_bundles([seen("a", "0"), seen("a", "1"), seen("b", "0"), seen("a", "2")], ADDRESSES)
    placement = Placement(actor=(0, 1), rollout=(2,), judge=(), critic=(3,))
    reserved = ReservedPlacement(placement, None, tuple(bundles), "a")
    assert [reserved.ranks_beside(gpu) for gpu in (0, 1, 3)] == [2, 2, 1]
    assert {bundle.cores for bundle in bundles} == {16}


def test_a_machine_of_a_cluster_that_cannot_use_cuda_is_named_once() -> None:
    broken = [seen("b", "0", None, "no driver"), seen("b", "1", None, "no driver"), seen("a", "0")]
    with pytest.raises(ConfigError, match=r"^10\.0\.0\.10: no driver$"):
        sorted_bundles(broken, ADDRESSES)
