"""Where things run: devices, GPUs of each role, Ray."""

from __future__ import annotations

from slime.arguments.option import Group, Option, json_object

CLUSTER = Group(
    "cluster and placement",
    (
        Option(
            "--device",
            "device of trainer and engines; auto takes CUDA if there is a GPU",
            str,
            "auto",
            ("auto", "cpu", "cuda"),
        ),
        Option(
            "--num-gpus", "logical GPUs of the Ray head; default: what the roles need on a CPU, all GPUs otherwise", int
        ),
        Option("--gpu-memory-gb", "GiB of one GPU, for the memory budget; default: what nvidia-smi says", float),
        Option("--num-gpus-per-node", "physical GPUs per node", int, 8),
        Option(
            "--num-nodes",
            "machines of the cluster that the run starts; this one is the head, the others run slime.ray.worker_node; "
            "default: as many as the GPUs need",
            int,
        ),
        Option("--head-address", "HOST:PORT on which the head is reached by the others, with --num-nodes above 1"),
        Option("--node-timeout", "seconds to wait for other machines, and for GPUs that other runs use", float, 600.0),
        Option(
            "--forward-env",
            "more environment variables for actors on all machines; instructions/cluster.md lists those that always go",
            nargs="+",
            default=(),
        ),
        Option("--actor-num-nodes", "training nodes", int, 1),
        Option("--actor-num-gpus-per-node", "training GPUs (ranks) on each node", int, 8),
        Option("--rollout-num-gpus", "GPUs of the policy engines", int),
        Option("--rollout-num-gpus-per-engine", "GPUs per policy engine", int, 1),
        Option(
            "--ray-address",
            "HOST:PORT of a Ray cluster to join instead of starting one, auto for the one on this machine, local for an own "
            "one; default: the variable RAY_ADDRESS, which ray job submit sets",
        ),
        Option("--run-dir", "logs, metrics and engine logs; default: runs/<date>-<time>"),
        Option(
            "--share-gpu",
            "trainer, policy engine and judge engine on one GPU at the same time; nothing is offloaded, so their memory "
            "has to fit together (--sglang-max-total-tokens)",
            bool,
        ),
        Option("--train-env-vars", "JSON object: environment variables of the training ranks", json_object, {}),
        Option("--http-proxy", "proxy of HTTP calls to other machines; engines are always called directly"),
    ),
)
