"""Our own Prefect API: what its process says when it ends."""

from __future__ import annotations

import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import uvicorn
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import pipeline, server
from tcl_core.errors import PlatformError


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


def test_a_server_that_asks_for_a_password_is_said_before_anything_runs(monkeypatch, capsys):
    """Its health is told to everybody; the run would end with a traceback of the first question."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path.endswith("/health") else 401)
            self.end_headers()
            self.wfile.write(b"true")

        do_POST = do_GET

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{http.server_address[1]}/api"
    monkeypatch.setattr(sys, "argv", ["pipeline"])
    try:
        with temporary_settings({PREFECT_API_URL: url}):
            assert pipeline.main() == PlatformError.exit_code
    finally:
        http.shutdown()
        http.server_close()
    sentence = f"tcl: the Prefect server at {url} asks for a password; export PREFECT_API_AUTH_STRING=user:password\n"
    assert capsys.readouterr().err.endswith(sentence)


def test_the_pool_has_that_name():
    """Of the connections of a database that is asked in a loop, as Prefect asks it."""
    from sqlalchemy.ext.asyncio import create_async_engine

    assert create_async_engine("sqlite+aiosqlite:///none.db").pool.logger.name == server.POOL
