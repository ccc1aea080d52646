from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def prefect_server():
    """A Prefect server with a database of its own; starting it takes seconds, so once per session."""
    import flows  # noqa: F401  (switches reporting off before Prefect is imported)
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
