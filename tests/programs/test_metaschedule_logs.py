"""MetaSchedule databases: what plain TVM writes is read, and what is written plain TVM applies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tcl_core import datasets
from tcl_core.compat import load_module, load_tvm, make_target, meta_schedule
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.features.batches import concatenate
from tcl_core.features.encode import Encoder
from tcl_core.programs.sketches import PARALLEL, read_sketch, trace_from_json, trace_to_json
from tcl_core.programs.tasks import Task, describe
from tcl_core.programs.tuning_logs import metaschedule
from tcl_core.programs.tuning_logs.known import Known, identity
from tcl_core.programs.tuning_logs.metaschedule import DatabaseLog, Tuned, write_database
from tcl_core.programs.tuning_logs.opening import RECORDS, WORKLOADS
from tcl_core.programs.workload import read_workload
from tests.conftest import TinyTask
from tests.programs.hostile_logs import hostile

TARGET = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}


def plain_database(folder: Path):  # type: ignore[no-untyped-def]
    folder.mkdir(exist_ok=True)
    return meta_schedule().database.JSONDatabase(path_workload=str(folder / WORKLOADS), path_tuning_record=str(folder / RECORDS))


def commit(database, tiny: TinyTask, trace, seconds) -> None:  # type: ignore[no-untyped-def]
    """As MetaSchedule's own callback does."""
    ms = meta_schedule()
    workload = database.commit_workload(tiny.module)
    arguments = ms.arg_info.ArgInfo.from_prim_func(tiny.module["main"])
    database.commit_tuning_record(ms.database.TuningRecord(trace, workload, seconds, make_target(TARGET), arguments))


def read(folder: Path, known: Known | None = None, **about_target: str):  # type: ignore[no-untyped-def]
    """The log, rows of its records (task, sketch, decisions, latencies), and refused lines."""
    log = DatabaseLog(folder / RECORDS, folder / WORKLOADS, known or Known(), **about_target)
    rows, refused = [], []
    for block in log.columns(lambda number, reason: refused.append((number, reason))):
        decisions, seconds = block["decisions"], block["latencies_s"]
        for n, sketch in enumerate(block["sketch_id"]):
            taken = decisions.values[decisions.offsets[n] : decisions.offsets[n + 1]]
            timed = seconds.values[seconds.offsets[n] : seconds.offsets[n + 1]]
            key = block["task_key"].names[block["task_key"].codes[n]]
            rows.append((key, int(sketch), tuple(taken.tolist()), tuple(timed.tolist())))
    return log, rows, refused


def sketch_of(known: Known, tiny: TinyTask, number: int):  # type: ignore[no-untyped-def]
    (text,) = [row["trace_json"] for row in known.sketch_rows() if row["sketch_id"] == number and row["task_key"] == tiny.task.key]
    return read_sketch(tiny.task.key, number, trace_from_json(text, tiny.module))


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_a_database_of_plain_tvm_becomes_tasks_sketches_and_decisions(tiny_tasks, name, tmp_path):
    tiny, wanted = tiny_tasks[name], []
    database = plain_database(tmp_path)
    for sketch in tiny.sketches:
        for number, decisions in enumerate(tiny.sample(sketch, 3)):
            schedule = tiny.space.materialise(sketch, decisions)
            commit(database, tiny, schedule.trace, [0.25, 0.5 + number])
            canonical = sketch.decisions_of(schedule.trace.simplified(remove_postproc=True))
            wanted.append((schedule.mod, tuple(canonical.tolist()), (0.25, 0.5 + number)))
    log, rows, refused = read(tmp_path, known := Known())
    assert refused == [] and log.errors == {"ok": len(wanted)} and log.lines == len(wanted)
    assert [(decisions, seconds) for _, _, decisions, seconds in rows] == [row[1:] for row in wanted]
    assert [row["task_key"] for row in known.task_rows()] == [tiny.task.key] == sorted({row[0] for row in rows})
    assert known.task_rows()[0]["op_type"] == tiny.task.operator and known.task_rows()[0]["flops"] == tiny.task.flops
    assert len(known.sketch_rows()) == len({row[1] for row in rows})
    for (_, number, decisions, _), (module, _, _) in zip(rows, wanted, strict=True):
        again = tiny.space.materialise(sketch_of(known, tiny, number), decisions)
        load_tvm().ir.assert_structural_equal(again.mod, module)


def test_what_evolutionary_search_changes_in_an_annotation_is_a_decision(matmul, tmp_path):
    """MutateParallel edits the argument of meta_schedule.parallel: one sketch, another decision."""
    sketch = matmul.sketches[0]
    (parallel,) = [slot for slot in sketch.slots if slot.kind == "constant"]
    database, given = plain_database(tmp_path), []
    for value in (16, 4, 2):
        decisions = matmul.sample(sketch, 1)[0]
        decisions[parallel.offset] = value
        commit(database, matmul, matmul.space.materialise(sketch, decisions).trace, [1e-3])
        given.append(value)
    _, rows, _ = read(tmp_path)
    assert [row[2][parallel.offset] for row in rows] == given and len({row[1] for row in rows}) == 1


def test_sketches_have_the_numbers_of_the_pool(conv, tmp_path):
    database = plain_database(tmp_path)
    for sketch in conv.sketches:
        commit(database, conv, conv.space.materialise(sketch, conv.sample(sketch, 1)[0]).trace, [1e-3])
    _, rows, _ = read(tmp_path, Known(pool=conv.rows()))
    assert [row[1] for row in rows] == [sketch.index for sketch in conv.sketches]
    _, others, _ = read(tmp_path)
    assert len({row[1] for row in others}) == len(conv.sketches) and others != rows


def named_otherwise(tiny: TinyTask) -> TinyTask:
    """A product and its ReLU, or a softmax, with blocks of other names, as from another network's file."""
    text = tiny.task.module_json
    for name, other in (('"matmul"', '"C"'), ('"relu"', '"T_maximum"'), ('"T_softmax_', '"T_')):
        text = text.replace(name, other)
    return TinyTask(describe("", load_module(text)))


def blocks_of(workload) -> list[str]:  # type: ignore[no-untyped-def]
    return [block.name for block in workload.blocks]


@pytest.mark.parametrize("turn", [1, -1])
def test_one_structure_under_two_sets_of_names_is_one_task(matmul, tmp_path, turn):
    """Traces find blocks by their names: all are read as of the module that came first, whose names the sketches have."""
    first, second = [matmul, named_otherwise(matmul)][::turn]
    assert first.task.key == second.task.key and {*blocks_of(first.workload)}.isdisjoint(blocks_of(second.workload))
    known, found = Known(), []
    for name, tiny in (("first", first), ("second", second)):
        database = plain_database(tmp_path / name)
        for sketch in tiny.sketches:
            for decisions in tiny.sample(sketch, 2):
                commit(database, tiny, tiny.space.materialise(sketch, decisions).trace, [0.25])
        _, rows, refused = read(tmp_path / name, known)
        assert refused == [] and len(rows) == 2 * len(tiny.sketches)
        found.append(rows)
    assert found[0] == found[1]
    (row,) = known.task_rows()
    task = Task.from_row(row)
    assert blocks_of(read_workload("", 0.0, task.module())) == blocks_of(first.workload)
    pool = Known(pool=known.sketch_rows(), modules={row["task_key"]: row["module_json"]})
    assert read(tmp_path / "second", pool)[1] == found[1] and pool.task_rows()[0]["module_json"] == row["module_json"]
    again = Known([row], known.sketch_rows())
    assert read(tmp_path / "second", again)[1] == found[1] and again.task_rows() == [row]
    tokens = Encoder([task], known.sketch_rows()).encode([row[:3] for row in found[1]], [1.0] * 11).features
    given = Encoder([first.task], first.rows())
    sketches = {number: place for place, number in enumerate(dict.fromkeys(row[1] for row in found[1]))}
    keys = [(key, sketches[number], decisions) for key, number, decisions, _ in found[1]]
    np.testing.assert_array_equal(tokens, given.encode(keys, [1.0] * 11).features)


def commit_one(folder: Path, tiny: TinyTask) -> None:
    """Write a database of one program."""
    sketch = tiny.sketches[0]
    commit(plain_database(folder), tiny, tiny.space.materialise(sketch, tiny.sample(sketch, 1)[0]).trace, [0.25])


@pytest.mark.parametrize("operator, turn", [("softmax", 1), ("norm", -1)])
def test_a_task_is_described_by_the_module_that_stays(softmax, tmp_path, operator, turn):
    """The names of its blocks tell the operator, and without "softmax" in them another one."""
    known = Known()
    for name, tiny in [("one", softmax), ("other", named_otherwise(softmax))][::turn]:
        commit_one(tmp_path / name, tiny)
        _, rows, refused = read(tmp_path / name, known)
        assert [row[0] for row in rows] == [softmax.task.key] and refused == []
    (row,) = known.task_rows()
    assert (row["op_type"], row["name"]) == (operator, f"{operator} 16x64 16x64")


def test_databases_of_two_tasks_of_one_name_are_not_put_together(matmul, tmp_path):
    """A name tells the operator and the shapes: a product's, whether it is bounded or doubled."""
    tvm = load_tvm()
    from tvm import te

    a, b, k = te.placeholder((32, 32), name="A"), te.placeholder((32, 32), name="B"), te.reduce_axis((0, 32), name="k")
    product = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    doubled = te.compute((32, 32), lambda i, j: product[i, j] + product[i, j], name="doubled")
    other = TinyTask(describe("", tvm.IRModule({"main": te.create_prim_func([a, b, doubled])})))
    found = []
    for name, tiny in (("one", matmul), ("other", other)):
        commit_one(tmp_path / name, tiny)
        found.append(datasets.log(tmp_path / name))
        assert found[-1].task_names == (f"matmul 32x32 32x32 32x32 ({tiny.task.key})",)
    with pytest.raises(UsageError, match="number their tasks each for itself cannot be put together"):
        concatenate(found)


def test_identity_of_a_sketch_forgets_its_decisions_alone(matmul, conv):
    sketch, other = matmul.sketches[0], matmul.sketches[1]
    texts = [trace_to_json(sketch.trace_with(row)) for row in matmul.sample(sketch, 4)]
    assert len(set(texts)) == 4 and len({identity(text) for text in texts}) == 1
    assert identity(texts[0]) != identity(trace_to_json(other.trace)) and PARALLEL in texts[0]


def test_a_failed_program_becomes_a_failed_record(matmul, tmp_path):
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    database = plain_database(tmp_path)
    for seconds in ([1e10], [0.5], None):
        commit(database, matmul, trace, seconds)
    log, rows, refused = read(tmp_path)
    assert log.errors == {"run": 2, "ok": 1} and refused == []
    assert [row[3] for row in rows] == [(), (0.5,), ()]


def changed(line: str, **changes) -> str:  # type: ignore[no-untyped-def]
    """The tuning record's JSON with its workload, instructions or decisions replaced."""
    workload, ((instructions, decisions), *rest) = json.loads(line)
    trace = [changes.get("instructions", instructions), changes.get("decisions", decisions)]
    return json.dumps([changes.get("workload", workload), [trace, *rest]])


def test_records_that_cannot_be_replayed_are_refused_one_by_one(matmul, tmp_path):
    sketch = matmul.sketches[0]
    database = plain_database(tmp_path)
    commit(database, matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])
    line = (tmp_path / RECORDS).read_text().splitlines()[0]
    decisions = json.loads(line)[1][0][1]
    (unrolled,) = [n for n, (place, _) in enumerate(decisions) if json.loads(line)[1][0][0][place][0] == "SampleCategorical"]
    tiled = [place for place, _ in decisions if json.loads(line)[1][0][0][place][0] == "SamplePerfectTile"]
    too_large = [[place, [2**30] * len(value) if place == tiled[0] else value] for place, value in decisions]
    out_of_range = [[place, 99 if n == unrolled else value] for n, (place, value) in enumerate(decisions)]
    nonsense = [
        ["GetSBlock", [], ["nowhere", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["Parallel", ["l1"], [], []],
    ]
    lines = [
        line, changed(line, workload=7), changed(line, workload="0"),
        changed(line, instructions=nonsense, decisions=[]),
        changed(line, decisions=decisions[1:]), changed(line, decisions=[[decisions[0][0], [1, 2]], *decisions[1:]]),
        changed(line, decisions=out_of_range), changed(line, decisions=too_large), "[0, [1, 2]]", "{}", line[:-20],
    ]  # fmt: skip
    (tmp_path / RECORDS).write_text("\n".join(lines))
    log, rows, refused = read(tmp_path)
    assert len(rows) == 1 and log.lines == len(lines)
    reasons = [
        "has no workload 7", "has no workload 0", "cannot be replayed", "has no decision", "2 decisions instead of 4",
        "chooses number 99, which it does not offer", f"splits a loop of 32 into {2**120}", "not shaped as a line of MetaSchedule", "not shaped as a line of MetaSchedule", "no JSON",
    ]  # fmt: skip
    assert [number for number, _ in refused] == list(range(2, 12))
    assert all(reason in found for (_, found), reason in zip(refused, reasons, strict=True)), refused


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("workload", [False, 0.0])
def test_what_only_equals_a_workloads_number_is_refused_and_spoils_no_other_record(matmul, tmp_path, workload, turn):
    commit_one(tmp_path, matmul)
    sound = (tmp_path / RECORDS).read_text().splitlines()[0]
    wrong = changed(sound, workload=workload)
    lines = [sound, wrong][::turn]
    (tmp_path / RECORDS).write_text("\n".join(lines))
    _, rows, refused = read(tmp_path)
    assert len(rows) == 1 and refused == [
        (1 + lines.index(wrong), f"its program is none of MetaSchedule (the database has no workload {workload})")
    ]


def test_a_negative_number_of_parallel_iterations_is_refused(matmul, tmp_path):
    """TVM's post-processor would never end with it, wherever the program is made again."""
    sketch = matmul.sketches[0]
    commit(plain_database(tmp_path), matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])
    line = (tmp_path / RECORDS).read_text().splitlines()[0]
    instructions = json.loads(line)[1][0][0]
    (place,) = [n for n, (kind, _, attributes, _) in enumerate(instructions) if kind == "Annotate" and attributes == [PARALLEL]]
    instructions[place][1][1] = -1
    (tmp_path / RECORDS).write_text(changed(line, instructions=instructions) + "\n" + line)
    _, rows, (refused,) = read(tmp_path)
    assert len(rows) == 1 and f"instruction {place} of its trace asks for -1 parallel iterations" in refused[1]


@pytest.mark.parametrize("factor", [0, -4])
def test_a_tiling_that_would_divide_by_zero_is_refused(matmul, tmp_path, factor):
    """As the first record of its sketch, which is replayed: TVM itself would end the process."""
    sketch = matmul.sketches[0]
    commit(plain_database(tmp_path), matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])
    line = (tmp_path / RECORDS).read_text().splitlines()[0]
    (place, factors), *others = json.loads(line)[1][0][1]
    (tmp_path / RECORDS).write_text(changed(line, decisions=[[place, [*factors[:-1], factor]], *others]) + "\n" + line)
    _, rows, refused = read(tmp_path)
    ((number, reason),) = refused
    assert (len(rows), number) == (1, 1) and f"instruction {place} of its trace splits a loop by {factor}" in reason


def test_whatever_a_record_says_it_is_one_or_refused(matmul, tmp_path):
    sketch = matmul.sketches[0]
    commit(plain_database(tmp_path), matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])
    line = (tmp_path / RECORDS).read_text().splitlines()[0]
    instruction = changed(line, instructions=[{"GetSBlock": []}], decisions=[])
    lines = [line.encode(), instruction.encode(), *(hostile(line, seed) or b"{}" for seed in range(200))]
    (tmp_path / RECORDS).write_bytes(b"\n".join(lines))
    log, rows, refused = read(tmp_path)
    assert len(rows) + len(refused) == log.lines == len(lines) and len(rows) > 10
    assert refused[0] == (2, "its program is none of MetaSchedule (0)")


def test_a_workload_of_another_tvm_refuses_its_records_and_says_so(matmul, tmp_path, monkeypatch):
    """It is read once, however many they are."""
    asked, plain = [], DatabaseLog._read_module
    monkeypatch.setattr(DatabaseLog, "_read_module", lambda self, workload: asked.append(workload) or plain(self, workload))
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    commit(plain_database(tmp_path), matmul, trace, [1e-3])
    key, _ = json.loads((tmp_path / WORKLOADS).read_text())
    (tmp_path / WORKLOADS).write_text(json.dumps([key, "AAAA"]) + "\n")
    (tmp_path / RECORDS).write_text(2 * (tmp_path / RECORDS).read_text())
    _, rows, refused = read(tmp_path)
    assert rows == [] and asked == [0]
    assert [number for number, _ in refused] == [1, 2] and all("this TVM cannot read workload 0" in why for _, why in refused)


def test_compressed_files_read_alike(matmul, tmp_path):
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    commit(plain_database(tmp_path), matmul, trace, [1e-3])
    plain = read(tmp_path)[1]
    for name in (RECORDS, WORKLOADS):
        (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert read(tmp_path)[1] == plain


# --- export ---


def tuned(tiny: TinyTask, count: int = 2) -> list[Tuned]:
    texts = {row["sketch_id"]: row["trace_json"] for row in tiny.rows()}
    found = []
    for sketch in tiny.sketches:
        for number, decisions in enumerate(tiny.sample(sketch, count)):
            decisions = tiny.space.canonical(sketch, decisions)
            key = (tiny.task.key, sketch.index, tuple(decisions.tolist()))
            found.append(Tuned(texts[sketch.index], key, (1e-3 * (1 + number), 1e-3 * (2 + sketch.index)), TARGET))
    return found


def test_plain_tvm_loads_what_is_exported_and_it_comes_back(matmul, conv, tmp_path):
    programs = [*tuned(matmul), *tuned(conv)]
    tasks = {tiny.task.key: tiny.task for tiny in (matmul, conv)}
    assert write_database(tmp_path, tasks, programs) == (len(programs), 0)
    _, rows, refused = read(tmp_path, Known(pool=[*matmul.rows(), *conv.rows()]))
    assert refused == []
    assert [row[:3] for row in rows] == [program.key for program in programs]
    assert [row[3] for row in rows] == [tuple(np.float32(s).item() for s in p.latencies_s) for p in programs]
    assert len(plain_database(tmp_path)) == len(programs)


def test_plain_tvm_makes_the_programs_that_were_measured(conv, tmp_path):
    programs = {program.latencies_s: program for program in tuned(conv)}
    assert write_database(tmp_path, {conv.task.key: conv.task}, programs.values()) == (len(programs), 0)
    records = plain_database(tmp_path).get_all_tuning_records()
    assert {tuple(map(float, record.run_secs)) for record in records} == set(programs)
    for record in records:
        _, sketch, decisions = programs[tuple(map(float, record.run_secs))].key
        schedule = load_tvm().s_tir.Schedule(conv.module, error_render_level="none")
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        wanted = conv.space.materialise(conv.sketches[sketch], decisions)
        load_tvm().ir.assert_structural_equal(schedule.mod, wanted.mod)


def test_the_fastest_program_is_what_a_query_finds(matmul, tmp_path):
    programs = tuned(matmul, 3)
    best = min(range(len(programs)), key=lambda n: sum(programs[n].latencies_s))
    write_database(tmp_path, {matmul.task.key: matmul.task}, programs)
    found = plain_database(tmp_path).query_tuning_record(matmul.module, make_target(TARGET), "main")
    assert [float(s) for s in found.run_secs] == pytest.approx(programs[best].latencies_s)


def test_decisions_that_tvm_refuses_are_counted(matmul, tmp_path):
    good, bad = tuned(matmul, 1)[:2]
    task, sketch, decisions = bad.key
    programs = [good, Tuned(bad.trace_json, (task, sketch, (*decisions[:-1], 99)), (1e-3,), TARGET)]
    assert write_database(tmp_path, {task: matmul.task}, programs) == (1, 1)
    assert len(plain_database(tmp_path)) == 1


def test_an_unknown_task_leaves_the_old_database(matmul, conv, tmp_path):
    write_database(tmp_path, {matmul.task.key: matmul.task}, tuned(matmul, 1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=f"task {conv.task.key} of a record is not among the tasks"):
        write_database(tmp_path, {matmul.task.key: matmul.task}, [*tuned(matmul, 1), *tuned(conv, 1)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_is_one_sentence(matmul, tmp_path, monkeypatch):
    def full(entry):  # type: ignore[no-untyped-def]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tcl_core.programs.tuning_logs.metaschedule._line", full)
    with pytest.raises(PlatformError, match="free some space"):
        write_database(tmp_path / "out", {matmul.task.key: matmul.task}, tuned(matmul, 1))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_record_that_draws_by_what_is_not_known_is_refused(matmul, tmp_path, monkeypatch):
    """Its decisions would not be seen, and different programs be the same: as tilings of tensor cores, partitioned ones."""
    sketch = matmul.sketches[0]
    commit(plain_database(tmp_path), matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])
    known = {kind: what for kind, what in metaschedule.KINDS.items() if kind != "SampleCategorical"}
    monkeypatch.setattr(metaschedule, "KINDS", known)
    _, rows, (refused,) = read(tmp_path)
    assert rows == [] and "its trace draws by SampleCategorical, which this version does not know" in refused[1]


def test_a_workload_of_one_opaque_block_refuses_its_records_alone(matmul, tmp_path, monkeypatch):
    sketch = matmul.sketches[0]
    commit(plain_database(tmp_path), matmul, matmul.space.materialise(sketch, matmul.sample(sketch, 1)[0]).trace, [1e-3])

    def opaque(name, module):
        raise RuntimeError("ScheduleError: (not rendered)")

    monkeypatch.setattr(metaschedule, "describe", opaque)
    _, rows, (refused,) = read(tmp_path)
    assert rows == [] and "workload 0 has no blocks that could be scheduled (ScheduleError: (not rendered))" in refused[1]


@pytest.mark.parametrize("error", [TypeError("int() argument must be a number"), AttributeError("no shape"), RuntimeError()])
def test_a_workload_that_cannot_be_described_is_read_once(matmul, tmp_path, monkeypatch, error):
    """Of symbolic extents, say, or with an argument that is no tensor; a database may have thousands of its records."""
    sketch, asked = matmul.sketches[0], []
    database = plain_database(tmp_path)
    for decisions in matmul.sample(sketch, 2):
        commit(database, matmul, matmul.space.materialise(sketch, decisions).trace, [1e-3])

    def described(name, module):
        asked.append(name)
        raise error

    monkeypatch.setattr(metaschedule, "describe", described)
    _, rows, refused = read(tmp_path)
    assert rows == [] and len(refused) == 2 and len(asked) == 1
    assert all("workload 0 has no blocks that could be scheduled" in why for _, why in refused)


def test_an_export_that_is_stopped_leaves_no_records_beside_other_workloads(matmul, tmp_path, monkeypatch):
    """TVM would join them: better none. A full disk is noticed before anything is replaced."""
    write_database(tmp_path, {matmul.task.key: matmul.task}, tuned(matmul, 1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(PlatformError, match="free some space"):
        patch.setattr(metaschedule.os, "fsync", full)
        write_database(tmp_path, {matmul.task.key: matmul.task}, tuned(matmul, 2))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    real = metaschedule.os.replace

    def killed(source, target):
        if Path(target).name == RECORDS:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(metaschedule.os, "replace", killed)
        write_database(tmp_path, {matmul.task.key: matmul.task}, tuned(matmul, 2))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [WORKLOADS]
