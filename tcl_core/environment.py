"""Environment variables that libraries read when they load; import this file first.

They switch off the telemetry of the libraries that TCL uses, and make waiting OpenMP threads sleep instead of spin: with
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
    """Number of processes that torchrun started, this one included; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
