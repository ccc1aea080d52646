"""A dialect of logs is its module and a line of the registry: with these two it is told, named, imported and featurised."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tcl_core import datasets
from tcl_core.errors import DataError
from tcl_core.features.layout import ALL_OPERATORS, ANNOTATE, KINDS, SPLIT, WORKLOAD, kinds_of, numbers_of
from tcl_core.programs.tuning_logs.dialects import DIALECTS, dialect_named, dialect_names
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import files_of, open_log
from tcl_core.stages.exchange import import_logs, imported_batches
from tcl_core.stages.workspace import Workspace
from tests.programs.log_lines import ansor_line, autotvm_line, write


def line(tile: int, unroll: int = 4, seconds: float = 0.5, kind: str = "tile"):
    return {"computes": ["matmul", 64, 32], "with": "llvm", "does": [[kind, 0, tile], ["unroll", 1, unroll]], "seconds": seconds}


@pytest.fixture
def log(monkeypatch, tmp_path):
    """A log of three programs of a dialect that is a module and this one line."""
    monkeypatch.setitem(DIALECTS, "MadeUp", "tests.programs.made_up_dialect")
    return write(tmp_path / "made.log", line(8), line(16, 2, 0.25), line(1, kind="fuse"), line(2, seconds=-1.0), line(32))


def test_each_dialect_is_called_what_its_module_says():
    assert {name: dialect_named(name).NAME for name in DIALECTS} == {name: name for name in DIALECTS}
    assert dialect_names() == "AutoTVM, Ansor or MetaSchedule"


def test_a_log_of_a_new_dialect_is_told_from_others_and_read(log, tmp_path):
    opened, refused = open_log(log, Known()), []
    (block,) = opened.columns(lambda number, reason: refused.append((number, reason)))
    assert (opened.name, opened.target, opened.errors) == ("MadeUp", "llvm", {"ok": 3}) and files_of(log) == [log]
    assert refused == [
        (3, "its program is none of MadeUp (a step neither tiles nor unrolls)"),
        (4, "latencies [-1.0] of a program measured without error"),
    ]
    assert block["program_id"].tolist() == [1, 2, 5] and block["decisions"].values.tolist() == [8, 4, 16, 2, 32, 4]
    (task,), (sketch,) = opened.known.task_rows(), opened.known.sketch_rows()
    assert (task["name"], task["op_type"], task["flops"]) == ("matmul of [64, 32]", "matmul", 4096.0)
    assert sketch["trace_json"] == '{"log":"MadeUp","steps":[["tile",0,0],["unroll",1,0]]}'
    for other, name in ((autotvm_line(), "AutoTVM"), (ansor_line(), "Ansor")):
        assert open_log(write(tmp_path / "other.log", other), Known()).name == name


def test_its_programs_become_tokens(log):
    samples = datasets.log(log, hardware=[3.0])
    key = hashlib.sha256(b'["matmul",64,32]').hexdigest()[:16]
    assert samples.latencies_s.tolist() == [0.5, 0.25, 0.5] and samples.task_names == (f"matmul of [64, 32] ({key})",)
    kinds = [[KINDS[kind] for kind in program] for program in kinds_of(samples.features).argmax(axis=2)]
    assert kinds == [["hardware", "workload", "Split", "Annotate"]] * 3
    _, workload, split, unroll = np.moveaxis(numbers_of(samples.features), 1, 0)
    assert np.exp2(workload[0, WORKLOAD.sizes]) - 1 == pytest.approx([4096, 0, 0, 2048, 1])
    assert workload[0, WORKLOAD.operator].tolist() == [float(name == "matmul") for name in ALL_OPERATORS]
    assert np.exp2(split[:, SPLIT.factors][:, :3]) - 1 == pytest.approx(np.array([[8, 8, 0], [4, 16, 0], [2, 32, 0]]))
    assert np.exp2(split[:, SPLIT.extent]) - 1 == pytest.approx(np.full((3, 1), 64)) and (split[:, SPLIT.anchor] == 1).all()
    assert unroll[:, ANNOTATE.key][:, :3].tolist() == [[0, 0, 1]] * 3
    assert np.exp2(unroll[:, ANNOTATE.values][:, 0]) - 1 == pytest.approx([4, 2, 4])


def test_what_was_imported_of_it_becomes_the_same_tokens(log, tmp_path):
    (report,) = import_logs(Workspace(tmp_path), [log], "somewhere")
    assert str(report).startswith("made (MadeUp): 3 records of 5 lines: 3 ok, 2 refused")
    (samples,) = imported_batches(Workspace(tmp_path), "somewhere")
    given = datasets.log(log)
    order = np.argsort(samples.latencies_s, kind="stable"), np.argsort(given.latencies_s, kind="stable")
    assert np.array_equal(samples.features[order[0]], given.features[order[1]])


def test_what_is_no_log_is_told_which_ones_are_read(log, tmp_path):
    with pytest.raises(DataError, match="there is no record of AutoTVM, Ansor, MetaSchedule or MadeUp"):
        open_log(write(tmp_path / "other.log", {"a": 1}), Known())
