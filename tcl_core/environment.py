"""What must stand in the environment before the libraries load that read it; import this file first.

Nothing that TCL uses reports to its makers.  And threads of OpenMP sleep instead of spinning while they wait: with
spinning, one more busy process on the machine makes training several times slower.
"""

from __future__ import annotations

import os

WANTED = {
    "DO_NOT_TRACK": "1",  # Prefect and others
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
for name, value in WANTED.items():
    os.environ.setdefault(name, value)


def processes() -> int:
    """How many processes torchrun started side by side, this one among them; 1 where it started none."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
