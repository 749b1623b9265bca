"""The runtime for live traffic, in rooms. A room imports only rooms below it; `lint-imports` checks this.

* ``__main__``: the command ``openclaw-rl``, which runs the others by name.
* ``window``: the pages that a browser shows of a run.
* ``chat``, ``doctor``, ``earlier``, ``init``, ``inspect``, ``replay``, ``report``, ``resume``, ``server``, ``tinker``: commands,
  and the process that answers with earlier weights.
* ``runs``: a run's folder, read for people.
* ``launch``: a launch script's variables become a plan.
* ``offline``: logs become turns of a ledger; a finished run is replayed.
* ``gate``: whether an update may serve.
* ``training``: the ledger's samples become batches.
* ``runtime``: the process that serves and judges.
* ``practice``: lessons move into the weights.
* ``gateway``, ``judge``: answer requests; judge turns.
* ``credit``, ``engine``, ``method``, ``sessions``: rewards compared; the policy engine's stream; a learning method's
  interface; conversations.
* ``ledger``: the durable record.
* ``lessons``: what a person's lesson is.
* ``config``, ``messages``, ``models``, ``privacy``: environment variables; chat messages as data; checkpoints and their
  download; secrets and personal data.
* ``exceptions``, ``owners``: errors that a person can act on; whose a session is.
"""

import importlib.util
import sys
from pathlib import Path


def _outside_environment() -> str | None:
    """Return a line for an interpreter that cannot run this package, because it is not that of the environment."""
    spec = importlib.util.find_spec("slime")  # without the environment's import path it is a mere folder
    missing = [name for name in ("httpx", "yaml") if importlib.util.find_spec(name) is None]
    if spec is not None and spec.origin is not None and not missing:
        return None
    root = Path(__file__).resolve().parents[1]
    python = root / ".venv" / "bin" / "python"
    if not missing:  # pip installed the packages, and not the project
        return f"{sys.prefix} lacks the project itself; type: pip install -e {root}/slime"
    what = f"type: source {root}/.venv/bin/activate" if python.exists() else f"run: bash {root}/scripts/setup.sh"
    return f"{sys.executable} is not the environment of this project; {what}, and repeat the command"


if sys.argv[:1] == ["-m"] and (_line := _outside_environment()):  # `python -m openclaw...` is about to fail
    print(_line, file=sys.stderr)
    sys.exit(2)
