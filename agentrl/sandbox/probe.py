"""What a program inside a sandbox finds, and which promise of `agentrl.sandbox.interface` that breaks.

`prove` is the self-test of providers whose walls this machine does not build itself. It attacks each bound: it opens
connections, writes outside `HOME`, and asks for more processes, memory and disk than `CHECKED` allows.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.sandbox.interface import Limits, Sandbox

CHECKED = Limits(memory_mib=256, cpus=1.0, processes=48, disk_mib=16, open_files=256)
"""Bounds of the sandbox that is attacked."""
ALLOWED_ENV = frozenset({"PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "LC_CTYPE"})
PROBE_SECONDS = 60.0
MAX_ANSWER = 1 << 16
SOURCE = r"""
import json, os, resource, signal, socket, sys, time

memory, processes, disk = (int(each) for each in sys.argv[1:])
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
found = {
    "uid": os.geteuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status.get("NoNewPrivs", "0").strip() == "1",
    "interfaces": [name for _, name in socket.if_nameindex()],
    "env": sorted(os.environ),
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    "reached": [],
    "written": [],
}
for address in (("1.1.1.1", 53), ("8.8.8.8", 53), ("169.254.169.254", 80)):
    with socket.socket() as client:
        client.settimeout(3)
        try:
            client.connect(address)
            found["reached"].append(address[0])
        except OSError:
            pass
for folder in ("/", "/bin", "/etc", "/home", "/opt", "/root", "/run", "/usr", "/var/tmp", "/dev", "/sys/fs/cgroup"):
    try:
        with open(folder + "/.agentrl-probe", "w"):
            found["written"].append(folder)
        os.unlink(folder + "/.agentrl-probe")
    except OSError:
        pass

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid

def hoard():
    block = bytearray(memory + disk + 64 << 20)
    for at in range(0, len(block), 4096):
        block[at] = 1

found["memory_held"] = os.waitpid(child(hoard), 0)[1] != 0
written = 0
try:
    with open("/work/.agentrl-probe", "wb", buffering=0) as file:
        while written < disk + 8:
            if file.write(b"\1" * (1 << 20)) < 1 << 20:
                break
            written += 1
except OSError:
    pass
os.unlink("/work/.agentrl-probe")
found["disk_mib"] = written
children = []
try:
    while len(children) < processes + 16:
        children.append(child(lambda: time.sleep(60)))
except OSError:
    pass
found["processes"] = len(children)
for each in children:
    os.kill(each, signal.SIGKILL)
    os.waitpid(each, 0)
print(json.dumps(found))
"""


async def prove(sandbox: Sandbox, limits: Limits, name: str) -> None:
    """Attack a sandbox with these limits.

    Args:
        sandbox: of no further use afterwards.
        limits: that it was started with.
        name: of its provider, for the message.

    Raises:
        InfraError: a promise does not hold; the message names each.
    """
    sizes = (str(limits.memory_mib), str(limits.processes), str(limits.disk_mib))
    result = await sandbox.execute(["python3", "-c", SOURCE, *sizes], timeout_s=PROBE_SECONDS, most_output=MAX_ANSWER)
    try:
        document = json.loads(result.output.rstrip().rpartition(b"\n")[2])
    except ValueError as error:
        said = result.output.decode(errors="replace")[-500:]
        raise InfraError(
            f"{name}: the self-test did not finish in the sandbox; does its image have python3? It said: {said}",
            code="check_failed",
        ) from error
    if broken := broken_promises(document, limits):
        raise InfraError(
            f"{name}: sandboxes do not hold what they promise: {'; '.join(broken)}; choose another provider, or repair"
            " this one's host",
            code="check_failed",
        )


def broken_promises(found: dict[str, Any], limits: Limits) -> list[str]:
    """Return what is wrong with the findings of a sandbox with these limits, one text for each promise."""
    broken = {
        "programs run as root": found["uid"] == 0,
        f"programs have capabilities ({found['capabilities']:x})": found["capabilities"] != 0,
        "programs can gain privileges (no_new_privs is not set)": not found["no_new_privileges"],
        f"there are network interfaces besides lo: {found['interfaces']}": not set(found["interfaces"]) <= {"lo"},
        f"addresses outside answer: {found['reached']}": bool(found["reached"]),
        f"variables leak in: {sorted(set(found['env']) - ALLOWED_ENV)}": not set(found["env"]) <= ALLOWED_ENV,
        f"folders besides /work, /tmp and /dev/shm are writable: {found['written']}": bool(found["written"]),
        f"a process may open {found['open_files']} files": found["open_files"] > limits.open_files,
        f"memory is not limited to {limits.memory_mib} MiB": not found["memory_held"],
        f"{found['disk_mib']} MiB could be written": found["disk_mib"] > limits.disk_mib,
        f"{found['processes']} processes could be started": found["processes"] > limits.processes,
    }
    return [text for text, is_broken in broken.items() if is_broken]
