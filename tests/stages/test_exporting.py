"""`tcl export`: what comes back of it, what plain TVM makes of it, and what it overwrites."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store
from tcl_core.compat import load_tvm, make_target, quiet_compiler
from tcl_core.errors import DataError, UsageError
from tcl_core.features.encode import Encoder
from tcl_core.platforms import Hardware
from tcl_core.programs.networks import load_relax
from tcl_core.programs.sketches import DesignSpace, trace_to_json
from tcl_core.programs.graph import PREPARED, apply_database, fuse
from tcl_core.programs.tasks import extract_tasks
from tcl_core.records import Record
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.programs.test_metaschedule_logs import RECORDS, WORKLOADS, commit, plain_database
from tests.stages import exchanged
from tests.stages.exchanged import TARGET, measured, write_pool
from tests.shipped import SHIPPED

here = exchanged.here


def test_what_was_measured_goes_out_and_comes_back(here, matmul, conv):
    rng = np.random.default_rng(0)
    write_pool("train", matmul, conv)
    records, holdout = measured(matmul, rng, TARGET), measured(conv, rng, TARGET)
    failed = measured(matmul, rng, TARGET, error="wrong-result", latencies_s=())
    store.write_records(Workspace().records_folder("host-avx2"), [*records, *({r.key: r for r in failed}.values())])
    store.write_records(Workspace().records_folder("host-avx2", "holdout"), holdout)
    count = len(records) + len(holdout)
    assert tcl("export", "-p", "host-avx2") == f"{count} measured programs -> data/exported/platform=host-avx2"
    assert len(plain_database(here / "data/exported/platform=host-avx2")) == count
    tcl("import", Path("data/exported/platform=host-avx2"), "-p", "again")
    back = store.read_records(Workspace().imported_folder("again") / "records")
    assert {(r.key, r.latencies_s) for r in back} == {(r.key, r.latencies_s) for r in [*records, *holdout]}
    assert json.loads(back[0].host)["mcpu"] == "haswell"
    assert tcl("export", "-p", "host-avx2", "--to", here / "elsewhere").endswith("elsewhere") and (here / "elsewhere" / RECORDS).exists()


def test_what_tuning_measured_is_there_to_be_learned(here, matmul, conv):
    """Under the hardware row that is given, and without the tasks that are judged on; the same database again takes its own place."""
    write_pool("train", matmul, conv)
    records = [record for tiny in (matmul, conv) for record in measured(tiny, np.random.default_rng(0), TARGET)]
    store.write_records(Workspace().records_folder("host-avx2"), records)
    tcl("export", "-p", "host-avx2", "--to", here / "measured")
    for _ in range(2):
        assert exchange.keep_tuned(Workspace(), Path("measured"), "host-avx2").records == len(records)
    assert not Workspace().imported_folder("host-avx2").exists()
    hardware = Hardware(cores=2, simd_bytes=32).vector()
    found = exchange.tuned_samples(Workspace(), "host-avx2", hardware)
    encoder = Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])
    wanted = encoder.encode([record.key for record in records], hardware, [record.latency_s for record in records])
    order = [np.lexsort((samples.latencies_s,)) for samples in (found, wanted)]
    np.testing.assert_array_equal(found.latencies_s[order[0]], wanted.latencies_s[order[1]])
    np.testing.assert_array_equal(found.features[order[0]], wanted.features[order[1]])
    (left,) = {tuple(exchange.tuned_samples(Workspace(), "host-avx2", hardware, {matmul.task.key}).latencies_s)}
    assert sorted(left) == sorted(record.latency_s for record in records if record.task_key == conv.task.key)
    assert len(exchange.tuned_samples(Workspace(), "host-avx2", hardware, {matmul.task.key, conv.task.key})) == 0


def test_a_network_that_is_tuned_once_more_teaches_both_times(here, matmul):
    """Its folder has the same name; what was measured first tells them apart."""
    for seed in range(2):
        write_pool("train", matmul)
        records = measured(matmul, np.random.default_rng(seed), TARGET)
        store.write_records(Workspace().records_folder("host-avx2"), records[: 3 - seed])
        tcl("export", "-p", "host-avx2", "--to", here / "measured", *(["--overwrite"] if seed else []))
        exchange.keep_tuned(Workspace(), Path("measured"), "host-avx2")
    files = sorted((Workspace().tuned_folder("host-avx2") / "records").glob("*.parquet"))
    assert len(files) == 2 and all(re.fullmatch("measured-[0-9a-f]{8}", file.stem) for file in files)


def test_two_tunings_whose_first_program_failed_are_two(here, matmul):
    """What failed is written alike by both."""
    for seed, seconds in enumerate((0.5, 0.25)):
        database = plain_database(here / "measured")
        draw = np.random.default_rng(0)
        for latency_s in ([1e10], [seconds]):
            commit(
                database,
                matmul,
                matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1, draw)[0]).trace,
                latency_s,
            )
        exchange.keep_tuned(Workspace(), Path("measured"), "host-avx2")
        shutil.rmtree(here / "measured")
        assert len(list((Workspace().tuned_folder("host-avx2") / "records").glob("*.parquet"))) == seed + 1
    found = exchange.tuned_samples(Workspace(), "host-avx2", Hardware(cores=2).vector())
    assert sorted(found.latencies_s.tolist()) == [0.25, 0.5, math.inf, math.inf]


def test_a_program_that_was_measured_again_is_one_row(here, matmul):
    """With all readings; whoever failed once has failed: what a finalist computes was not looked at before."""
    write_pool("train", matmul)
    first = measured(matmul, np.random.default_rng(0), TARGET)[:3]
    again = [replace(first[0], latencies_s=(8.0, 9.0, 10.0)), replace(first[1], error="wrong-result", latencies_s=())]
    folder = Workspace().tuned_folder("host-avx2")
    store.write_records(folder / "records", [*first, *again])
    store.write_table(folder / "tasks.parquet", "tasks", [matmul.task.as_row()])
    store.write_table(folder / "sketches.parquet", "sketches", matmul.rows())
    assert exchange.was_tuned(Workspace(), "host-avx2") and not exchange.was_tuned(Workspace(), "host-avx512")
    found = exchange.tuned_samples(Workspace(), "host-avx2", Hardware(cores=2).vector())
    wanted = sorted([statistics.median((*first[0].latencies_s, 8.0, 9.0, 10.0)), math.inf, first[2].latency_s])
    assert sorted(found.latencies_s.tolist()) == wanted


def test_what_a_users_folder_has_stays_as_it_was(here, matmul, monkeypatch):
    """Also where the export fails; a folder that it made itself goes."""
    write_pool("train", matmul)
    store.write_records(Workspace().records_folder("host-avx2"), measured(matmul, np.random.default_rng(0), TARGET))
    (here / "mine/records").mkdir(parents=True)
    (here / "mine/.lock").write_text("mine")
    tcl("export", "-p", "host-avx2", "--to", here / "mine")
    assert {path.name for path in (here / "mine").iterdir()} == {"records", ".lock", RECORDS, WORKLOADS}
    assert (here / "mine/.lock").read_text() == "mine"

    def failing(*given):
        raise DataError("none of them")

    monkeypatch.setattr(exchange, "write_database", failing)
    (here / "empty").mkdir()
    for folder in ("empty", "new"):
        with pytest.raises(DataError, match="none of them"):
            tcl("export", "-p", "host-avx2", "--to", here / folder)
    assert not list((here / "empty").iterdir()) and not (here / "new").exists()


def test_export_names_what_is_missing(here, matmul):
    with pytest.raises(UsageError, match="unknown platform 'host-avx' in params.yaml; did you mean 'host-avx2'"):
        tcl("export", "-p", "host-avx")
    write_pool("train", matmul)
    with pytest.raises(DataError, match=r"there are no records in data/records/platform=host-avx2.*collect@host-avx2"):
        tcl("export", "-p", "host-avx2")
    records = measured(matmul, np.random.default_rng(0), TARGET)
    store.write_records(Workspace().records_folder("host-avx2"), records)
    store.write_table(Workspace().pool / "train" / "sketches.parquet", "sketches", [])
    with pytest.raises(DataError, match=r"which was measured on host-avx2, is not in the pool; run the stage candidates"):
        tcl("export", "-p", "host-avx2")
    assert list(Path("data").glob("exported/**/*.json")) == []


def test_plain_tvm_applies_an_exported_database_to_a_network(here, tiny_network):
    """Compiled with it the network computes what it computes without."""
    tvm, target = load_tvm(), make_target(TARGET)
    from tvm_ffi import structural_equal

    rng, rows, records = np.random.default_rng(0), [], []
    found = [task for task, _ in extract_tasks(tiny_network, PREPARED)]
    for task in found:
        space = DesignSpace(task.key, task.module(), TARGET)
        sketch = space.sketches()[0]
        rows.append({"task_key": task.key, "sketch_id": 0, "trace_json": trace_to_json(sketch.trace)})
        decisions = tuple(int(d) for d in space.canonical(sketch, sketch.sample(1, rng)[0]))
        records.append(
            Record(
                task_key=task.key,
                sketch_id=0,
                program_id=0,
                decisions=decisions,
                latencies_s=(0.5,),
                error="ok",
                message="",
                round=0,
                measured_at=datetime(2026, 1, 1, tzinfo=UTC),
                host="cpu-1",
                tvm_version="0.27",
                protocol=json.dumps({"target": TARGET}),
            )
        )
    store.write_table(Workspace().task_tables / "tasks.parquet", "tasks", [t.as_row() for t in found])
    store.write_table(Workspace().pool / "train" / "sketches.parquet", "sketches", rows)
    store.write_records(Workspace().records_folder("host-avx2"), records)
    tcl("export", "-p", "host-avx2", "--to", here / "database")
    with quiet_compiler():
        module = fuse(load_relax(tiny_network), target, PREPARED)
        applied = apply_database(module, target, plain_database(here / "database"))
    scheduled = [
        var for var, function in module.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and not (var in applied.functions and structural_equal(function, applied[var]))
    ]  # fmt: skip
    assert len(scheduled) >= len(found) > 2, "every task's function was replaced"
    image = np.random.default_rng(1).normal(size=(1, 8, 8, 8)).astype(np.float32)
    outputs = []
    for built in (module, applied):
        with quiet_compiler():
            machine = tvm.relax.VirtualMachine(tvm.compile(built, target), tvm.cpu())
            answer = machine["main"](tvm.runtime.tensor(image))
        outputs.append((answer if hasattr(answer, "numpy") else answer[0]).numpy())
    assert np.allclose(*outputs, atol=1e-5)


def test_an_export_overwrites_no_database_unasked(here, matmul):
    write_pool("train", matmul)
    store.write_records(Workspace().records_folder("host-avx2"), measured(matmul, np.random.default_rng(0), TARGET))
    tcl("export", "-p", "host-avx2", "--to", here / "database")
    for name in (RECORDS, WORKLOADS):
        other = RECORDS if name == WORKLOADS else WORKLOADS
        kept = (here / "database" / other).read_bytes()
        (here / "database" / other).unlink()
        (here / "database" / name).write_text("mine")
        with pytest.raises(UsageError, match=f"{name} exists; give another name, or --overwrite to replace it"):
            tcl("export", "-p", "host-avx2", "--to", here / "database")
        assert (here / "database" / name).read_text() == "mine"
        (here / "database" / other).write_bytes(kept)
    tcl("export", "-p", "host-avx2", "--to", here / "database", "--overwrite")
    assert "mine" not in (here / "database" / RECORDS).read_text()
    tcl("export", "-p", "host-avx2")
    tcl("export", "-p", "host-avx2")  # what is below data/ is its own


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("params.yaml", "is no folder; name a folder for the database's two files"),
        ("loop", "is no folder"),
        ("/dev/null", "is no folder"),
        ("params.yaml/below", "not a directory"),
        ("a" * 300, "file name too long"),
    ],
)
def test_places_where_no_database_can_be(here, matmul, to, told):
    write_pool("train", matmul)
    store.write_records(Workspace().records_folder("host-avx2"), measured(matmul, np.random.default_rng(0), TARGET))
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=told):
        tcl("export", "-p", "host-avx2", "--to", Path(to))
    assert Path("params.yaml").read_bytes() == SHIPPED.read_bytes()


def test_what_two_tunings_measured_of_a_task_is_not_compared(here, matmul):
    """One may have timed it cold, by another protocol or on another day: each has tasks of its own."""
    records = measured(matmul, np.random.default_rng(0), TARGET)[:3]
    folder = Workspace().tuned_folder("host-avx2")
    for log, factor in (("small", 1.0), ("large", 3.0)):
        slower = [replace(record, latencies_s=tuple(factor * s for s in record.latencies_s)) for record in records]
        store.write_records(folder / log, slower)
        (folder / "records").mkdir(parents=True, exist_ok=True)
        (folder / log / "records.parquet").rename(folder / "records" / f"{log}.parquet")
    store.write_table(folder / "tasks.parquet", "tasks", [matmul.task.as_row()])
    store.write_table(folder / "sketches.parquet", "sketches", matmul.rows())
    found = exchange.tuned_samples(Workspace(), "host-avx2", Hardware(cores=2).vector())
    assert sorted(found.tasks.tolist()) == [0, 0, 0, 1, 1, 1]
    own = sorted(record.latency_s for record in records)
    assert sorted(found.latencies_s[found.tasks == 1].tolist()) == own
    assert sorted(found.latencies_s[found.tasks == 0].tolist()) == pytest.approx([3 * s for s in own])
