from tcl_core import environment  # noqa: F401  (before Prefect is imported)
