from tcl_core import telemetry  # noqa: F401  (before Prefect is imported)
