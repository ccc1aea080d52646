"""Nothing that TCL uses reports to its makers: importing this file says so to all of them, before they are imported."""

from __future__ import annotations

import os

OFF = {
    "DO_NOT_TRACK": "1",  # Prefect and others
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
for name, value in OFF.items():
    os.environ.setdefault(name, value)
