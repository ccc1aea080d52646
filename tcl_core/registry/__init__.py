"""Trained models with their history, in MLflow: versions of `tcl-PLATFORM`, and which of them is the champion.

The only part that knows MLflow, which it imports lazily, since that takes seconds.  It does not know how a model is made
or which is better: the caller passes facts, metrics and the verdict.  The store is `mlflow.db` in the working folder, or
in the project's (``beside``), or what MLFLOW_TRACKING_URI names.  docs/registry.md explains it to users.

    names          what things are called             local_store  where the store lies, its locks, creation and moves
    connection     a client, and errors as sentences  runs         the run behind a version
    registering    also finding and listing           aliases      candidate, champion, previous
    champions      loading, promoting, going back     model_files  a version's files, verified; the user's cache
    serving        what a version includes for MLflow to serve it
"""

from tcl_core.registry.aliases import BEFORE, SINCE, WITHDRAWN
from tcl_core.registry.champions import (
    HOST,
    PROMOTION,
    ROLLBACK,
    champion,
    champion_version,
    load_champion,
    of_another_host,
    platforms_with_champion,
    promote,
    rollback,
    withdrawn,
)
from tcl_core.registry.connection import RegistryAway
from tcl_core.registry.local_store import EXPERIMENT, beside, is_there, where
from tcl_core.registry.names import ALIASES, CANDIDATE, CHAMPION, PREVIOUS, RUN_KEY, model_name, pinned, run_key
from tcl_core.registry.runs import LOGGED, REGISTRAR, TIMES_LOGGED, UNDER_WAY
from tcl_core.registry.serving import CODE, NEEDED, SERVED, serve
from tcl_core.registry.registering import FLOW_RUN_ID, Version, attach, logged, register, version_of, versions

__all__ = [
    "ALIASES", "BEFORE", "CANDIDATE", "CHAMPION", "CODE", "EXPERIMENT", "FLOW_RUN_ID", "HOST", "LOGGED", "NEEDED", "PREVIOUS",
    "PROMOTION", "REGISTRAR", "ROLLBACK", "RUN_KEY", "SERVED", "SINCE", "TIMES_LOGGED", "UNDER_WAY", "WITHDRAWN",
    "RegistryAway", "Version", "attach", "beside", "champion", "champion_version", "is_there", "load_champion", "logged", "model_name",
    "of_another_host", "pinned", "platforms_with_champion", "promote", "register", "rollback", "run_key", "serve", "version_of", "versions",
    "where", "withdrawn",
]  # fmt: skip
