"""What a run rents at Fireworks: first a trainer job, then a deployment that loads what it saves.

Both have names of ours, which stand in ``RUN_DIR/fireworks.json`` before anything is created, so that no crash leaves something that
costs money and that nobody knows. A run that finds the file goes on with what it names. At the end both are deleted, or with
``--fireworks-keep`` kept, and a line says how to delete them.

Routes, fields and states are those of Fireworks' interface as of its package 1.2.30.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tinker

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped
from slime.args import Arguments, required
from slime.arguments.fireworks import KEY
from slime.backends.fireworks_utils.http import Connection, body_of
from slime.utils.run_logs import say

NOTE = "fireworks.json"
POLL_SECONDS, TELL_SECONDS, SETTLE_SECONDS = 5.0, 60.0, 30.0
ABSENT, TAKEN = frozenset({404}), frozenset({409})
LORA = "LORA_TRAINER"
RESUMABLE = frozenset({"FAILED", "CANCELLED", "PAUSED", "COMPLETED", "EARLY_STOPPED"})
GONE = frozenset({"DELETED", "ARCHIVED", "DELETING", "DELETING_CLEANING_UP"})
DEAD = frozenset({"FAILED", "DELETED", "DELETING"})
SERVING = frozenset({"READY", "UPDATING"})
UNSAID = "Fireworks gives no reason; look at its console"


@dataclass(frozen=True)
class Note:
    """What a run rents; ``RUN_DIR/fireworks.json`` holds it for as long as it may exist.

    Attributes:
        account: whose it is.
        trainer: name of the trainer job.
        deployment: name of the deployment.
        model: that is trained.
        rank: of the adapter.
        shape: training shape, which decides the accelerators.
    """

    account: str
    trainer: str
    deployment: str
    model: str
    rank: int
    shape: str

    @property
    def trainer_path(self) -> str:
        """The trainer job's resource name."""
        return f"accounts/{self.account}/rlorTrainerJobs/{self.trainer}"

    @property
    def deployment_path(self) -> str:
        """The deployment's resource name, which is also its name for inference."""
        return f"accounts/{self.account}/deployments/{self.deployment}"

    def write(self, folder: Path) -> None:
        """Write it whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{NOTE}.tmp"
        temporary.write_text(json.dumps(asdict(self), indent=2))
        temporary.replace(folder / NOTE)

    @staticmethod
    def read(folder: Path) -> Note | None:
        """Return the note of a run; None without one.

        Raises:
            ConfigError: it cannot be read.
        """
        if not (folder / NOTE).is_file():
            return None
        try:
            return Note(**json.loads((folder / NOTE).read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{folder / NOTE} cannot be read ({error}); look at Fireworks' console for what it named"
            ) from error


@dataclass(frozen=True)
class Shape:
    """A training shape.

    Attributes:
        name: without a version, so that the newest validated one is taken.
        context: most tokens of a sequence.
        accelerators: of the trainer.
        deployment: shape of the deployment that fits.
        per_replica: accelerators of one replica of the deployment.
    """

    name: str
    context: int | None
    accelerators: int
    deployment: str
    per_replica: int


class Rental:
    """Owns the trainer job and the deployment of a run; entering creates or finds them, and waits until both serve.

    Attributes:
        note: their names.
        shape: of the trainer.
        context: most tokens of a sequence; None if Fireworks does not say.
    """

    note: Note
    shape: Shape

    def __init__(self, args: Arguments, connection: Connection) -> None:
        self._args, self._connection, self._folder = args, connection, Path(args.run_dir)
        self.context: int | None = None
        self._closing, self._closed = threading.Lock(), False

    def __enter__(self) -> Rental:
        """Create or find both.

        Raises:
            ConfigError: Fireworks refuses, something fails there, or it takes longer than ``--fireworks-wait-minutes``.
            Stopped: a signal arrived.
        """
        try:
            account = self._account()
            self.shape = self._resolved()
            replicas = self._replicas()
            self.note = self._noted(account, replicas)
            try:
                self._train()
                self._deploy(replicas)
            except BaseException:
                self.__exit__()
                raise
        except tinker.TinkerError as error:
            raise ConfigError(explained(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Let nothing more be created, and delete both, or with ``--fireworks-keep`` say how to."""
        with self._closing:
            self._closed = True
        if self._args.fireworks_keep:
            say(f"keeps    {self.note.trainer_path} and {self.note.deployment_path}, which cost; to delete: {self.how}")
        else:
            _delete(self.note, self._folder)

    @property
    def how(self) -> str:
        """The command that deletes both."""
        return how_to_delete(self._folder)

    # What there is

    def _account(self) -> str:
        found = body_of(self._connection.ask("GET", "/v1/accounts", query={"pageSize": "2"})).get("accounts") or []
        names = [str(each.get("name", "")).removeprefix("accounts/") for each in found]
        if len(names) != 1 or not names[0]:
            raise ConfigError(f"the key in {KEY} belongs to {len(names)} accounts; export one that belongs to one")
        return names[0]

    def _resolved(self) -> Shape:
        name = required("--fireworks-training-shape", self._args.fireworks_training_shape)
        if "/versions/" in name:
            version = body_of(self._connection.ask("GET", f"/v1/{name}"))
        else:
            asked = {"filter": "latest_validated=true", "pageSize": "1"}
            found = body_of(self._connection.ask("GET", f"/v1/{name}/versions", query=asked))
            version = next(iter(found.get("trainingShapeVersions") or ()), None)
            if version is None:
                raise ConfigError(f"{name} has no validated version; choose another --fireworks-training-shape")
        facts = version.get("snapshot") or {}
        if facts.get("trainerMode") != LORA:
            raise ConfigError(
                f"{name} is of mode {facts.get('trainerMode') or 'unknown'}, and this trains an adapter; choose a shape of "
                f"mode {LORA} with --fireworks-training-shape"
            )
        deployment = facts.get("deploymentShapeVersion")
        if not deployment:
            raise ConfigError(f"{name} names no shape of a deployment; choose another --fireworks-training-shape")
        replica = body_of(self._connection.ask("GET", f"/v1/{deployment}")).get("snapshot") or {}
        return Shape(
            name,
            int(facts.get("maxSupportedContextLength") or 0) or None,
            int(facts.get("acceleratorCount") or 0) * int(facts.get("nodeCount") or 1),
            str(deployment),
            int(replica.get("acceleratorCount") or 1),
        )

    def _replicas(self) -> int:
        """Return the replicas that ``--fireworks-gpus`` leaves for the deployment; 1 without it."""
        gpus, shape = self._args.fireworks_gpus, self.shape
        if gpus is None:
            return 1
        if (least := shape.accelerators + shape.per_replica) > gpus:
            raise ConfigError(
                f"--fireworks-gpus {gpus}: {shape.name} trains on {shape.accelerators}, and a replica of the deployment has "
                f"{shape.per_replica}; give {least} or more, or another --fireworks-training-shape"
            )
        return (gpus - shape.accelerators) // shape.per_replica

    def _noted(self, account: str, replicas: int) -> Note:
        args, name = self._args, f"openclaw-{secrets.token_hex(4)}"
        model = required("--tinker-model", args.tinker_model)
        wanted = Note(account, name, args.fireworks_deployment or name, model, args.lora_rank, self.shape.name)
        found = Note.read(self._folder)
        if found is None:
            if (named := args.fireworks_deployment) and self._state(wanted.deployment_path) is not None:
                raise ConfigError(
                    f"there is a deployment {named}, and not of this run; choose another --fireworks-deployment"
                )
            wanted.write(self._folder)
            return wanted
        fixed = ("account", "model", "rank", "shape")
        if differ := [each for each in fixed if getattr(found, each) != getattr(wanted, each)]:
            raise ConfigError(
                f"{self._folder / NOTE} names a trainer of another {' and '.join(differ)}; set it as before, or type: {self.how}"
            )
        if (asked := args.fireworks_deployment) not in {None, found.deployment}:
            raise ConfigError(
                f"--fireworks-deployment {asked}: {self._folder / NOTE} names {found.deployment}; leave it out to go on with "
                f"that, or type: {self.how}"
            )
        deployment = self._state(found.deployment_path) if args.fireworks_gpus is not None else None
        if deployment is not None and (has := int(deployment.get("maxReplicaCount") or 0)) != replicas:
            raise ConfigError(
                f"--fireworks-gpus {args.fireworks_gpus}: that makes {replicas} replicas, and {found.deployment_path} has "
                f"{has}; leave it out to go on with that, or type: {self.how}"
            )
        say(f"finds    {found.trainer_path} and {found.deployment_path} of {self._folder}")
        return found

    def _state(self, path: str) -> Mapping[str, Any] | None:
        answer = self._connection.ask("GET", f"/v1/{path}", also=ABSENT)
        return None if answer.status_code in ABSENT else body_of(answer)

    # The trainer job

    @property
    def gateway(self) -> str:
        """Path below which the trainer job answers in the Tinker interface."""
        return f"/training/v1/rlorTrainerJobs/{self.note.account}/{self.note.trainer}"

    def revive(self) -> None:
        """Return once the trainer job answers, and a deployment that there is loads from it.

        Raises:
            ConfigError: as `__enter__`.
            Stopped: a signal arrived, or `__exit__` began.
        """
        self._train()
        found = self._state(self.note.deployment_path)
        if found is not None and found.get("hotLoadTrainerJob") != self.note.trainer_path:
            self._attach(found)

    def _train(self) -> None:
        """Create the trainer job, resume it, or replace it if it was deleted, and wait until it answers."""
        resumed_at = None
        with self._closing:  # as long as it creates, the end waits, so that it deletes what was created
            if self._closed:
                raise Stopped
            job = self._state(self.note.trainer_path)
            if job is not None and _state_of(job) in GONE:
                self.note, job = replace(self.note, trainer=f"openclaw-{secrets.token_hex(4)}"), None
            if job is None:
                self.note.write(self._folder)
                self._create_trainer()
            elif _state_of(job) in RESUMABLE:
                self._connection.ask("POST", f"/v1/{self.note.trainer_path}:resume")
                resumed_at = time.monotonic()
        job = self._until("trainer job", self.note.trainer_path, lambda job: self._trains(job, resumed_at))
        limit = (job.get("trainingConfig") or {}).get("maxContextLength")
        self.context = int(limit) if limit else self.shape.context

    def _create_trainer(self) -> None:
        body = {
            "serviceMode": True,
            "keepAlive": False,
            "dataset": "",
            "displayName": self.note.trainer,
            "trainingConfig": {
                "baseModel": self.note.model,
                "loraRank": self.note.rank,
                "learningRate": self._args.lr,
            },
        }
        query = {"trainingShape": self.note.shape, "rlorTrainerJobId": self.note.trainer}
        self._connection.ask("POST", f"/v1/accounts/{self.note.account}/rlorTrainerJobs", body, query=query, also=TAKEN)

    def _trains(self, job: Mapping[str, Any], resumed_at: float | None) -> bool:
        state = _state_of(job)
        settles = resumed_at is not None and time.monotonic() - resumed_at < SETTLE_SECONDS
        if state in RESUMABLE | GONE and not settles:
            raise ConfigError(f"{self.note.trainer_path} is {state}: {_reason(job) or UNSAID}")
        if state != "RUNNING":
            return False
        return self._connection.ask("GET", f"{self.gateway}/api/v1/healthz", also=frozenset(range(400, 600))).is_success

    # The deployment

    def _deploy(self, replicas: int) -> None:
        found = self._state(self.note.deployment_path)
        if found is None:
            self.note.write(self._folder)
            body = {
                "baseModel": self.note.model,
                "description": "openclaw-rl",
                "deploymentShape": self.shape.deployment,
                "minReplicaCount": replicas,
                "maxReplicaCount": replicas,
                "enableHotLoad": True,
                "hotLoadBucketType": "FW_HOSTED",
                "hotLoadTrainerJob": self.note.trainer_path,
                "hotLoadTransitionType": "SYNC",  # a reply ends with the weights that it began with
                "forTraining": True,
            }
            path = f"/v1/accounts/{self.note.account}/deployments"
            self._connection.ask("POST", path, body, query={"deploymentId": self.note.deployment}, also=TAKEN)
        self._attach(found)

    def _attach(self, found: Mapping[str, Any] | None) -> None:
        """Let a deployment that was found load from the trainer job, and wait until it, or a new one, serves."""
        if found is not None and _state_of(found) in DEAD:
            raise ConfigError(f"{self.note.deployment_path} is {_state_of(found)}; type: {self.how}")
        if found is not None and found.get("hotLoadTrainerJob") != self.note.trainer_path:
            change = {"hotLoadTrainerJob": self.note.trainer_path}
            query = {"updateMask": "hot_load_trainer_job"}
            self._connection.ask("PATCH", f"/v1/{self.note.deployment_path}", change, query=query)
        self._until("deployment", self.note.deployment_path, self._serves)

    def _serves(self, deployment: Mapping[str, Any]) -> bool:
        state = _state_of(deployment)
        if state in DEAD:
            raise ConfigError(f"{self.note.deployment_path} is {state}: {_reason(deployment) or UNSAID}")
        attached = deployment.get("hotLoadTrainerJob") == self.note.trainer_path
        return attached and state in SERVING | {"CREATING"} and bool(self.replicas())

    @property
    def hot_load_headers(self) -> dict[str, str]:
        """Headers that name the deployment to the hot-load route."""
        return {"fireworks-model": self.note.model, "fireworks-deployment": self.note.deployment_path}

    def replicas(self) -> list[Mapping[str, Any]]:
        """Return what each replica has loaded; nothing before there are any."""
        not_yet = frozenset({404, 425, *range(500, 600)})
        answer = self._connection.ask("GET", HOT_LOAD, headers=self.hot_load_headers, also=not_yet)
        if answer.status_code in not_yet:
            return []
        found = body_of(answer).get("replicas")
        if not isinstance(found, list):
            raise tinker.TinkerError(
                f"{HOT_LOAD} tells of no replicas; this version of its interface is not known here"
            )
        return found

    # Waiting

    def _until(self, what: str, path: str, ready: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        since = told = time.monotonic()
        before, minutes = "", self._args.fireworks_wait_minutes
        while True:
            found = self._state(path)
            if found is None:
                raise ConfigError(f"{path} is gone; it was deleted meanwhile")
            if ready(found):
                say(f"ready    {what} {path}")
                return found
            now, state = time.monotonic(), _state_of(found)
            if state != before or now - told > TELL_SECONDS:
                reason = _reason(found)
                say(f"waits    {what} {path}: {state.lower()}, {int(now - since)} s{reason and f'; {reason}'}")
                before, told = state, now
            if now - since > 60 * minutes:
                why = "has no accelerators yet" if state == "PENDING" else f"is {state.lower()}"
                raise ConfigError(
                    f"{path} {why} after {minutes:g} minutes; raise --fireworks-wait-minutes, or choose another "
                    "--fireworks-training-shape"
                )
            self._connection.pause(POLL_SECONDS)


HOT_LOAD = "/hot_load/v1/models/hot_load"


def how_to_delete(folder: Path) -> str:
    """Return the command that deletes what a run's note names."""
    return f"python openclaw-fireworks/run.py --delete {folder}"


def delete(folder: Path) -> bool:
    """Delete what a run's note names, the deployment first, and return whether nothing is left.

    Raises:
        ConfigError: there is no note, it cannot be read, or there is no key.
    """
    note = Note.read(folder)
    if note is None:
        raise ConfigError(
            f"there is no {NOTE} in {folder}, and nothing was deleted; give the folder of a run that rents, its --run-dir"
        )
    return _delete(note, folder)


def _delete(note: Note, folder: Path) -> bool:
    connection, left = Connection(patience=60.0), []
    forced = {"hard": "true", "ignoreChecks": "true"}
    try:
        for path, query in ((note.deployment_path, forced), (note.trainer_path, None)):
            try:
                connection.ask("DELETE", f"/v1/{path}", query=query, also=ABSENT)
            except tinker.TinkerError as error:
                say(f"warning: {path} may still cost, because it could not be deleted: {explained(error)}")
                left.append(path)
            else:
                say(f"deleted  {path}")
    finally:
        connection.close()
    if left:
        note.write(folder)
        say(f"warning: to delete it later, type: {how_to_delete(folder)}")
        return False
    (folder / NOTE).unlink(missing_ok=True)
    return True


def explained(error: tinker.TinkerError) -> str:
    """Return one line: what Fireworks refused, and what to do."""
    todo = {
        401: f"export a key with training rights in {KEY}",
        402: "the account has no credit; add some at Fireworks",
        403: "the key may not train; the training interface is a private preview, so ask Fireworks for it",
        404: "check --tinker-model and --fireworks-training-shape",
        429: "the account's quota is used up; try again later, or ask Fireworks for more",
    }
    status = getattr(error, "status_code", 0)
    return f"Fireworks refuses: {error}" + (f"; {todo[status]}" if status in todo else "")


def _state_of(resource: Mapping[str, Any]) -> str:
    return str(resource.get("state") or "UNKNOWN").removeprefix("JOB_STATE_")


def _reason(resource: Mapping[str, Any]) -> str:
    status = resource.get("status")
    said = status.get("message") if isinstance(status, Mapping) else status
    return " ".join(str(said or "").split())[:500]
