"""A collection that ends early: a full disk, a second collector, a kill; what was told is kept, and it goes on from there."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcl_core.collect import collect, measure_all
from tcl_core.errors import BusyError, PlatformError
from tcl_core.journal import Journal
from tests import collections_in_memory
from tests.collections_in_memory import PLAN, ignore, outcome_of, records_of, two_models

pool, collection_in, collected_in = collections_in_memory.pool, collections_in_memory.collection_in, collections_in_memory.collected_in
ROOT = Path(__file__).parents[1]


# --- a full disk, a second collector ---


@contextmanager
def disk_of(free_bytes, path):
    """As if the disk were full when ``path`` has grown by so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_while_collecting(collected_in, collection_in, runners, tmp_path):
    """One sentence; what was told is in the journal, and the collection goes on from there."""
    undisturbed, _, _ = collected_in(tmp_path / "undisturbed")
    journal, told = tmp_path / "full", []
    Journal(journal).close()
    with disk_of(3000, journal / "records.jsonl"), pytest.raises(PlatformError) as raised:
        collect(collection_in(journal), PLAN, two_models(), ignore, told.append)
    assert str(raised.value) == (
        f"cannot write {journal / 'records.jsonl'} (file too large); what was there before is kept; free some space and run again"
    )
    assert 2 <= len(told) < 24 and records_of(journal) == told
    resumed, _, _ = collected_in(journal)
    assert outcome_of(resumed) == outcome_of(undisturbed) and len(runners[-1].jobs) == 24 - len(told)


def test_a_second_collector_of_one_journal_starts_no_worker(collection_in, runners, tmp_path):
    hold = "import sys; from tcl_core.journal import Journal; j = Journal(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(tmp_path)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    first.stdout.readline()
    with pytest.raises(BusyError, match=f"^process {first.pid} is already collecting into {tmp_path}; wait for it to end"):
        measure_all(collection_in(tmp_path), 0.0, ignore)
    assert runners == []
    first.communicate()
    measure_all(collection_in(tmp_path), 0.0, ignore)
    assert len(records_of(tmp_path)) == 60


# --- kill -9 ---

COLLECTOR = """
import sys
sys.path.insert(0, "tests")
import conftest
from tcl_core.measure import runner
runner.PER_WORKER, runner.threads = 4, lambda: 2  # two workers, eight programs a batch
from tcl_core.collect import Collection, measure_all
from tcl_core.features.encode import Encoder
from tcl_core.programs.pool import sample_programs
from tcl_core.programs.tasks import describe
tiny = conftest.TinyTask(describe("fused_matmul_relu", conftest.matmul_module()))
collection = Collection(
    programs=sample_programs(tiny.task, tiny.sketches, tiny.space, 24, seed=0),
    encoder=Encoder([tiny.task], tiny.rows()), hardware=(1.0,) * 11, host="host", setup=conftest.quick_setup(),
    journal=sys.argv[1],
)
print("start", len(collection.known), flush=True)
measure_all(collection, 0.0, lambda record: print(record.error, flush=True))
print("end", flush=True)
"""


def collector(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COLLECTOR, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def test_a_collector_that_is_killed_goes_on_where_it_was(tmp_path):
    """All of the batches that it had measured are kept."""
    began = time.time()
    first = collector(tmp_path)
    seen = [first.stdout.readline().strip() for _ in range(9)]  # "start 0" and a batch
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert seen == ["start 0"] + ["ok"] * 8
    kept = records_of(tmp_path)
    assert 8 <= len(kept) < 24
    said = collector(tmp_path).communicate(timeout=120)[0].split("\n")
    assert said[0] == f"start {sum(not r.disturbed for r in kept)}" and said[-2] == "end"
    assert said[1:-2] == ["ok"] * 24  # those of before are told too
    records = records_of(tmp_path)
    assert records[: len(kept)] == kept
    disturbed = [r.key for r in kept if r.disturbed]
    assert len(records) == 24 + len(disturbed) and len({r.key for r in records}) == 24
    assert all(0 < min(r.latencies_s) and re.match(r"0\.27", r.tvm_version) for r in records)
    assert all(began - 1 <= r.measured_at.timestamp() <= time.time() for r in records)
