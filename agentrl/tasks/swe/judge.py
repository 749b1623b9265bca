"""The verifier's program in an exported task folder: ``python3 -I judge.py WANTED HOME REWARD``, beside ``runner.py``.

It runs the tests in HOME and writes 1 to REWARD if all tests that WANTED names passed, otherwise 0. Only the standard library is imported, because the
program runs alone beside the tests.
"""

import json
import subprocess
import sys
from pathlib import Path


def main(wanted: str, home: str, reward: str) -> None:
    names = json.loads(Path(wanted).read_text())
    files = {name.split("(")[1].rpartition(".")[0] for name in names}
    done = subprocess.run(
        [sys.executable, "-I", "-B", Path(__file__).with_name("runner.py").resolve()],
        cwd=home,
        input=json.dumps({"modules": sorted(files)}).encode(),
        stdout=subprocess.PIPE,
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    fine = [name for name in names if f"{name} ... ok" in lines and f"{name} ... FAIL" not in lines]
    print(f"{len(fine)} of {len(names)} tests pass")
    Path(reward).write_text("1\n" if len(fine) == len(names) else "0\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
