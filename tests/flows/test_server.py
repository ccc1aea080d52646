"""Our own Prefect API: what its process says when it ends."""

from __future__ import annotations

import logging

import pytest
import uvicorn

from flows import server


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_query_that_the_end_cancels_is_no_error(monkeypatch, caplog, is_ending):
    """The pool's words are heard while the server serves; a run that ended well ends without a traceback."""
    pool = logging.getLogger(server.POOL)
    monkeypatch.setattr(server, "end_with_parents", lambda say: None)
    monkeypatch.setattr(pool, "filters", [])

    def run(self):
        self.should_exit = is_ending
        pool.error("Exception during reset or similar")

    monkeypatch.setattr(uvicorn.Server, "run", run)
    server.serve(1)
    assert [record.getMessage() for record in caplog.records] == ([] if is_ending else ["Exception during reset or similar"])


def test_the_pool_has_that_name():
    """Of the connections of a database that is asked in a loop, as Prefect asks it."""
    from sqlalchemy.ext.asyncio import create_async_engine

    assert create_async_engine("sqlite+aiosqlite:///none.db").pool.logger.name == server.POOL
