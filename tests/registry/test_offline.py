"""A compiler beside a server: versions are fetched once, kept, and used while the server is away."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.errors import DataError, RegistryError, TclError, UsageError
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tcl_core.models.cost_model import write_description
from tcl_core.registry import local_store, model_files
from tests.registry import helpers
from tests.registry.helpers import TAGS, saved, some_samples

empty, store, little_code = helpers.empty, helpers.store, helpers.little_code


@pytest.fixture
def server(tmp_path, monkeypatch, little_code) -> Callable[..., None]:
    """``server()``: from now on the store is taken for a server's;  ``server(away=True)``: which does not answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(model_files, "_store_digits", lambda: "server")  # whatever its address is
    monkeypatch.chdir(tmp_path)
    address = local_store.uri()

    def become(away: bool = False) -> None:
        monkeypatch.setattr(local_store, "local_store", lambda: None)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1" if away else address)

    return become


def registered(platform: str, folder: Path, *seeds: int) -> None:
    """Versions 1, 2, ... of which each becomes champion."""
    for number, seed in enumerate(seeds, start=1):
        assert registry.register(platform, saved(folder / str(seed), seed), {}, {}, TAGS) == number
        registry.promote(platform, number, True, "better", number - 1 or None)


def later(monkeypatch, seconds: float) -> None:
    moment = time.time() + seconds
    monkeypatch.setattr(model_files, "time", SimpleNamespace(time=lambda: moment))


def test_a_version_of_a_server_is_fetched_once_and_kept_whole(tmp_path, monkeypatch, server):
    import mlflow.artifacts

    registered("p-far", tmp_path, 5)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    server()
    kept = tmp_path / "cache/tcl/models/server/tcl-p-far"
    (kept / ".fetching-dead").mkdir(parents=True)
    _, folder = registry.champion("p-far")
    assert folder.is_relative_to(kept) and (folder / "model.json").is_file()
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", lambda *_, **__: pytest.fail("fetched twice"))
    assert registry.champion("p-far") == (1, folder)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in kept.iterdir()) == [folder.relative_to(kept).parts[0], "champion.json", "lock"]


def test_while_the_server_is_away_the_kept_champion_is_used_and_that_is_said(tmp_path, monkeypatch, server, caplog):
    registered("p-away", tmp_path, 3, 4)
    server()
    there = registry.champion("p-away")
    assert there[0] == 2 and caplog.messages == []
    server(away=True)
    later(monkeypatch, 3 * 86_400)
    assert registry.champion("p-away") == there
    [said] = caplog.messages
    assert said.startswith("the model registry at http://127.0.0.1:1 is away (") and "refused" in said
    assert said.endswith("version 2 of tcl-p-away is used as it was kept, the champion 3 days ago")
    expected = create("random", FitSettings(seed=4)).predict(some_samples())
    np.testing.assert_array_equal(registry.load_champion("p-away").predict(some_samples()), expected)
    assert "p-away" in registry.platforms_with_champion()


def test_what_was_never_loaded_is_not_there_while_the_server_is_away(tmp_path, server):
    server(away=True)
    for ask in (registry.champion, registry.load_champion, lambda _: registry.platforms_with_champion()):
        with pytest.raises(
            registry.RegistryAway, match=r"^the model registry at http://127.0.0.1:1 is away .*; start it, or set MLFLOW_TRACKING_URI"
        ):
            ask("p-never")


def test_a_version_can_be_pinned(tmp_path, monkeypatch, server, caplog):
    registered("p-pin", tmp_path, 1, 2)
    server()
    number, folder = registry.champion("p-pin:1")
    assert number == 1 and (folder / "model.json").read_bytes() == (tmp_path / "1/model.json").read_bytes()
    with pytest.raises(RegistryError, match="^there is no version 7 of tcl-p-pin; tcl models lists what there is$"):
        registry.champion("p-pin:7")
    server(away=True)
    assert registry.champion("p-pin:1") == (1, folder)
    assert re.search(r"; version 1 of tcl-p-pin is used as it was kept, the pinned version \d+ seconds ago$", caplog.messages[-1])
    for never in ("p-pin", "p-pin:2"):
        with pytest.raises(registry.RegistryAway):
            registry.champion(never)


@pytest.mark.parametrize("name", ["p:", "p:0", "p:-1", "p:x", "p:1:2", "p:٣", "p:1234567890"])
def test_what_names_no_version_is_said(name):
    with pytest.raises(UsageError, match="^'.*' names no version; write PLATFORM:NUMBER, such as host-avx2:3"):
        registry.champion(name)


@pytest.mark.parametrize("what", ["model", "note", "folder"])
def test_a_damaged_cache_is_refused_offline_and_mended_online(tmp_path, server, what):
    registered(f"p-{what}", tmp_path, 6)
    server()
    _, folder = registry.champion(f"p-{what}")
    if what == "model":
        saved(folder, 9)
    elif what == "folder":
        shutil.rmtree(folder)
    else:
        note = next((tmp_path / "cache").rglob("champion.json"))
        note.write_text(note.read_text().replace('"version": 1', '"version": 2'))
    server(away=True)
    said = {
        "model": "holds other bytes than were registered", "folder": "as it was kept in .* is not there",
        "note": r"champion.json is damaged \(its checksum does not fit\); it is fetched again when the registry answers",
    }[what]  # fmt: skip
    with pytest.raises(DataError, match=said):
        registry.champion(f"p-{what}")
    server()
    assert registry.champion(f"p-{what}") == (1, folder)
    assert (folder / "model.json").read_bytes() == (tmp_path / "6/model.json").read_bytes()


def test_a_champion_of_other_tokens_is_refused_before_it_is_used(tmp_path, little_code):
    (tmp_path / "model").mkdir()
    write_description(tmp_path / "model", {"class": "random", "arguments": {"seed": 0, "features": 7}})
    registry.register("p-narrow", tmp_path / "model", {}, {}, TAGS)
    registry.promote("p-narrow", 1, True, "the first", None)
    with pytest.raises(
        DataError, match="^version 1 of tcl-p-narrow reads tokens of 7 numbers, and this version's have [0-9]+; train it again$"
    ):
        registry.champion("p-narrow")


def test_a_cache_that_takes_no_file_is_named(tmp_path, monkeypatch, server):
    registered("p-full", tmp_path, 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    server()
    with pytest.raises(TclError, match=f"^cannot write {tmp_path}/file/tcl/models/server/tcl-p-full/"):
        registry.champion("p-full")
