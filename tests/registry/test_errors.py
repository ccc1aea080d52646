"""Stores that another MLflow made, that lack rights, or that do not answer: one sentence each, and nothing is changed."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tcl_core import registry
from tcl_core.errors import RegistryError
from tcl_core.registry import local_store
from tests.registry import helpers
from tests.registry.helpers import TAGS, child, saved, use

empty, store, fresh = helpers.empty, helpers.store, helpers.fresh


def set_schema(file: Path, schema: str) -> bytes:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [schema])
    return file.read_bytes()


def test_an_older_mlflows_registry_is_left_as_it_is_and_said(fresh, tmp_path):
    """Though some of its tables are lacking, whereupon MLflow would bring it up to date without a word."""
    database, (present, *older) = fresh / "mlflow.db", local_store._schemas()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE logged_model_tags")
    before = set_schema(database, older[5])
    said = (
        rf"^the model registry at {database} was made by an older MLflow \(schema {older[5]}, this one's is {present}\); "
        f"keep a copy of it, then run: mlflow db upgrade sqlite:///{database}$"
    )
    for act in (
        lambda: registry.champion_version("p-old"),
        lambda: registry.register("p-old", saved(tmp_path / "model"), {}, {}, TAGS),
        lambda: registry.promote("p-old", 1, True, "better", None),
    ):
        with pytest.raises(RegistryError, match=said):
            act()
    assert database.read_bytes() == before


def test_a_newer_mlflows_registry_is_said(fresh):
    set_schema(fresh / "mlflow.db", "fedcba987654")
    with pytest.raises(RegistryError, match=r"was made by a newer MLflow \(schema fedcba987654 is not known to this one\); install that"):
        registry.champion_version("p-new")


def test_a_database_without_rights_is_said(fresh, monkeypatch):
    """To another user; as root all may be read and written."""
    import os

    def as_another() -> str:
        os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
        os.chdir("/")
        try:
            return f"version {registry.champion_version('p-rights')}"
        except RegistryError as error:
            return str(error)

    with tempfile.TemporaryDirectory() as name:
        public = Path(name) / "project"
        public.mkdir()
        (public / "mlflow.db").write_bytes((fresh / "mlflow.db").read_bytes())
        use(public, monkeypatch)
        assert child(lambda: registry.champion_version("p-rights") or "none") == "none"  # which brings it to its place
        public.parent.chmod(0o755), public.chmod(0o755)
        (public / "mlflow.db").chmod(0o000)
        said = child(as_another)
    assert said.startswith(f"the model registry at {public}/mlflow.db failed (") and "\n" not in said
    assert said.endswith("for this user lacks the rights; see to the rights of the database and its folder, or be their owner")


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a server that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"Sic!")

        do_GET = do_POST = answer

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "status, kind, said",
    [
        (
            401,
            RegistryError,
            r"refuses this user \(HTTP 401\); set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
        ),
        (403, RegistryError, r"refuses this user \(HTTP 403\); set MLFLOW_TRACKING_USERNAME"),
        (503, registry.RegistryAway, r"is away \(.*\); start it, or set MLFLOW_TRACKING_URI to one that answers$"),
        (404, RegistryError, r"failed \(.*404.*\); check that it can be reached and written"),
    ],
)
def test_a_server_that_refuses(monkeypatch, tmp_path, status, kind, said):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with answering(status) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:secret@"))
        with pytest.raises(RegistryError, match=f"^the model registry at {address} {said}") as error:
            registry.champion("p-server")
    assert type(error.value) is kind and "secret" not in str(error.value) and "\n" not in str(error.value)


def test_an_address_of_a_kind_that_mlflow_does_not_know(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "foo://x")
    with pytest.raises(
        RegistryError, match="^MLflow has no registry of the kind of foo://x; set MLFLOW_TRACKING_URI to an http, sqlite or"
    ):
        registry.champion("p-server")
