"""The data set behind a URL: read alike, checked alike, and named in what goes wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tcl_core import datasets, store
from tcl_core.checked import json_bytes
from tcl_core.errors import DataError, TclError, UsageError
from tcl_core.files import is_remote, place

pytest.importorskip("upath", reason="needs the extra remote")
fsspec = pytest.importorskip("fsspec")
PLATFORM = "platform=host-avx2"
SMALL = ["latencies_s", "decisions", "host"]


@pytest.fixture
def url():
    """The packaged data set in fsspec's memory."""
    memory = fsspec.filesystem("memory")
    memory.put(f"{datasets.PACKAGED.resolve()}/", "/data/reference", recursive=True)
    yield "memory://data/reference"
    memory.rm("/data", recursive=True)


def change(path: str, change) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file(path, bytes(change(bytearray(memory.cat_file(path)))))


def test_tables_and_records_are_those_of_the_folder(url):
    assert store.read_table(f"{url}/networks.parquet", "networks") == store.read_table(datasets.PACKAGED / "networks.parquet", "networks")
    places = f"{url}/{PLATFORM}", datasets.PACKAGED / PLATFORM
    for found, expected in zip(*(store.iter_records(folder, ["task_key", "decisions", "host"]) for folder in places), strict=True):
        assert found == expected
    for found, expected in zip(*(store.iter_columns(folder, SMALL) for folder in places), strict=True):
        np.testing.assert_array_equal(found["latencies_s"].values, expected["latencies_s"].values)
        np.testing.assert_array_equal(found["decisions"].offsets, expected["decisions"].offsets)


def test_the_reference_data_set_of_a_url(url, tmp_path):
    data = datasets.reference(url, features=tmp_path)
    assert data.platforms == datasets.reference().platforms
    assert data.hardware("host-avx2") == datasets.reference().hardware("host-avx2")
    assert data.encoder.texts == datasets.reference().encoder.texts and data.uses == datasets.reference().uses


@pytest.mark.parametrize("at", [0.3, 0.6, 0.999])
def test_a_flipped_bit_is_noticed(url, at):
    path = "/data/reference/networks.parquet"
    store.read_table(f"{url}/networks.parquet", "networks")  # that it was whole before is not remembered

    def flip(raw: bytearray) -> bytearray:
        raw[int(at * len(raw))] ^= 1
        return raw

    change(path, flip)
    with pytest.raises(DataError, match=r"networks.parquet is damaged"):
        store.read_table(f"{url}/networks.parquet", "networks")


def test_a_file_cut_short_is_noticed(url):
    change("/data/reference/networks.parquet", lambda raw: raw[: len(raw) // 2])
    with pytest.raises(DataError, match=r"networks.parquet is damaged"):
        store.read_table(f"{url}/networks.parquet", "networks")


def test_another_platforms_records_are_noticed(url):
    memory = fsspec.filesystem("memory")
    memory.copy("/data/reference/platform=host-sse42/records.parquet", f"/data/reference/{PLATFORM}/records.parquet")
    with pytest.raises(DataError, match="holds records of the platform host-sse42"):
        store.read_records(f"{url}/{PLATFORM}")


@pytest.mark.parametrize("work", [
    lambda url: store.read_table(f"{url}/tasks.parquet", "tasks"),
    lambda url: store.read_records(f"{url}/{PLATFORM}"),
    lambda url: store.iter_columns(f"{url}/{PLATFORM}"),
    datasets.reference,
])  # fmt: skip
def test_what_is_not_there_is_named(work):
    with pytest.raises(TclError, match="nowhere"):
        work("memory://nowhere")


def test_a_platform_that_was_skipped(url):
    memory, facts = fsspec.filesystem("memory"), {"platform": "p", "reason": "this CPU lacks avx512f"}
    memory.pipe_file("/data/reference/platform=p/skipped.json", json_bytes(facts))
    assert store.skipped_reason(f"{url}/platform=p") == "this CPU lacks avx512f"
    with pytest.raises(DataError, match="the platform was skipped .this CPU lacks avx512f"):
        store.read_records(f"{url}/platform=p")
    assert store.skipped_reason(f"{url}/{PLATFORM}") is None


def test_a_kind_of_url_that_nothing_reads():
    with pytest.raises(UsageError, match="cannot read nosuch://bucket/data .*nosuch.*; install what reads it"):
        place("nosuch://bucket/data")


def test_a_path_stays_a_path(tmp_path):
    assert place(str(tmp_path)) == tmp_path and place(tmp_path) == tmp_path and not is_remote(place("a:b/c"))
    assert type(place("data")) is type(Path("data"))
