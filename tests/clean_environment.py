"""What the caller has set up is not tested: Git's hooks, for one, name a repository in which tests would then commit."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

for variable in list(os.environ):
    if variable.startswith(("GIT_", "MLFLOW_", "PREFECT_", "DVC_", "TCL_")):
        del os.environ[variable]
os.environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "commit.gpgsign", "GIT_CONFIG_VALUE_0": "false"}
os.environ |= {"DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
if "PYTEST_XDIST_WORKER" in os.environ:  # each process has a CPU's worth: threads of several would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
else:  # its processes share this cache
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tcl-tests-cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
