"""Libraries of networks: what cannot be built, and what is left out so that the rest can be."""

from __future__ import annotations

import resource
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tcl_core.compat import make_target, meta_schedule, quiet_compiler, structural_key
from tcl_core.errors import PlatformError, UsageError
from tcl_core.programs import graph
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.network_files import Imported, relax_from_exported
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.programs.tuning_logs.opening import DATABASE, MEASURED
from tcl_core.stages.tuned_folder import unchecked_text
from tcl_core.tuning import network
from tcl_core.tuning.database import GUESSED_S, Shelf, open_database
from tcl_core.tuning.library import CURVE, ROOM, by_task, database_of, export, without_spoilers, write_databases
from tcl_core.tuning.transfer import Donors
from tcl_core.tuning.tuner import TaskTime


@pytest.mark.parametrize("spoilers", ["", "d", "a", "be", "abcdefg", "g"])
def test_what_spoils_the_others_is_left_out(spoilers):
    asked = []

    def is_sound(parts):
        asked.append(list(parts))
        return not set(parts) & set(spoilers)

    assert without_spoilers([[name] for name in "abcdefg"], is_sound) == [part for part in "abcdefg" if part not in spoilers]
    assert len(asked) <= 1 + 4 * len(spoilers)  # by bisection


def test_two_that_spoil_each_other_lose_one():
    assert without_spoilers([[name] for name in "abcd"], lambda parts: not {"b", "d"} <= set(parts)) == ["a", "b", "c"]


@pytest.mark.parametrize(("spoilers", "kept"), [("", "adf"), ("d", "aef"), ("a", "bdf"), ("abc", "df"), ("abcdeg", "f"), ("ade", "bf")])
def test_the_next_best_takes_the_place_of_what_spoils(spoilers, kept):
    """Three parts, of three, two and two alternatives."""
    assert "".join(without_spoilers(["abc", "de", "fg"], lambda parts: not set(parts) & set(spoilers))) == kept


def test_tvm_applies_what_the_network_was_built_with(tmp_path, matmul, conv, softmax):
    """A winner that others seemed faster than, one that turned out wrong, and a guess; a task that was left to TVM stays as it is."""
    target, tasks = make_target(EXTRACTION_TARGET), (matmul, conv, softmax)
    schedules = {
        tiny.task.key: [tiny.space.materialise(tiny.sketches[0], one) for one in tiny.sample(tiny.sketches[0], 3)] for tiny in tasks
    }
    measured, winners = open_database(tmp_path / "all"), meta_schedule().database.MemoryDatabase()
    wrong, built, lucky = (schedule.trace for schedule in schedules[matmul.task.key])
    shelf = Shelf(measured, matmul.module, target)
    for trace, seconds in ((wrong, [1e-5]), (built, [9e-5]), (lucky, [1e-4]), (wrong, []), (built, [1.2e-4, 1.4e-4])):
        shelf.put(trace, seconds)
    Shelf(measured, softmax.module, target).put(schedules[softmax.task.key][0].trace, [1e-4])
    Shelf(winners, matmul.module, target).put(built, [1.3e-4])
    Shelf(winners, conv.module, target).put(schedules[conv.task.key][2].trace, [GUESSED_S])
    (tmp_path / "all" / CURVE).write_text("{}")  # of the search, no part of the database
    write_databases(tmp_path / "all", winners.get_all_tuning_records(), tmp_path)
    assert not (tmp_path / MEASURED / CURVE).exists()
    (tmp_path / "all" / CURVE).unlink()

    written = open_database(tmp_path / DATABASE)
    found = {tiny.task.key: written.query_ir_module(tiny.module, target, "main") for tiny in tasks}
    chosen = {key: None if module is None else structural_key(module) for key, module in found.items()}
    of = lambda tiny, number: structural_key(schedules[tiny.task.key][number].mod)  # noqa: E731
    assert chosen == {matmul.task.key: of(matmul, 1), conv.task.key: of(conv, 2), softmax.task.key: None}
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert len(names) == 2 and all((tmp_path / MEASURED / name).read_bytes() == (tmp_path / "all" / name).read_bytes() for name in names)
    donors = Donors([tmp_path], EXTRACTION_TARGET)  # all but the wrong one
    assert len(donors.of(matmul.sketches[0])) == 2


def test_a_full_disk_while_the_databases_are_written_is_one_sentence(tmp_path, matmul, monkeypatch):
    target, winners = make_target(EXTRACTION_TARGET), meta_schedule().database.MemoryDatabase()
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    Shelf(winners, matmul.module, target).put(trace, [1e-3])
    open_database(tmp_path / "all")
    (tmp_path / "out").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # Python ignores the signal
    try:
        with pytest.raises(PlatformError, match=r"^cannot write .*database; free some space and run again, what was measured is kept$"):
            write_databases(tmp_path / "all", winners.get_all_tuning_records(), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Compares(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x > 0) == (x > 1)).float()


def relax_of(model: torch.nn.Module, *shape: int):
    with quiet_compiler():
        return relax_from_exported(torch.export.export(model.eval(), (torch.ones(shape),)), "network")


@pytest.fixture
def no_build(monkeypatch):
    """A network with a function that LLVM refuses, as it would be without its spelling out."""
    monkeypatch.setattr(graph, "spell_out_booleans", lambda module: module)
    return relax_of(Compares(), 2, 3)


def test_what_cannot_be_built_names_the_function(no_build, tmp_path):
    target = make_target(EXTRACTION_TARGET)
    with quiet_compiler():
        module = fuse(no_build, target, PREPARED)
    with pytest.raises(PlatformError, match=r"^TVM cannot build the function \w*equal\w* \(.*\); give another network$"):
        export(module, target, tmp_path / "network.so")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_built_costs_no_trial(no_build, monkeypatch, make_setup):
    monkeypatch.setattr(network, "import_network", lambda name, threads: Imported(no_build, [np.ones((2, 3), np.float32)]))
    monkeypatch.setattr(network, "search_tasks", lambda *_: pytest.fail("it was searched"))
    with pytest.raises(PlatformError, match="TVM cannot build the function"):
        network.tune_network("compares", PREPARED, None, (), make_setup(), 8, 0)


def test_a_library_that_cannot_be_linked_is_a_sentence(tmp_path):
    target = make_target(EXTRACTION_TARGET)
    with quiet_compiler():
        module = fuse(relax_of(torch.nn.ReLU(), 2, 3), target, PREPARED)
    with pytest.raises(PlatformError, match=r"none/network.so cannot be linked \(.*\); is there a C\+\+ compiler \(g\+\+\), and space\?"):
        export(module, target, tmp_path / "none" / "network.so")


def test_no_room_for_a_library_is_a_sentence(tmp_path):
    target = make_target(EXTRACTION_TARGET)
    with quiet_compiler():
        module = fuse(relax_of(torch.nn.ReLU(), 2, 3), target, PREPARED)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(PlatformError, match=rf"^cannot write {tmp_path} \(file too large\)"):  # else LLVM would end this process
            export(module, target, tmp_path / "network.so")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_the_weights_need_room_too(tmp_path, monkeypatch):
    """LLVM writes them into an object file of their own."""
    target, weights = make_target(EXTRACTION_TARGET), 4 * (512 * 256 + 256)
    with quiet_compiler():
        module = fuse(relax_of(torch.nn.Linear(512, 256), 2, 512), target, PREPARED)
    asked: list[int] = []
    monkeypatch.setattr("os.posix_fallocate", lambda descriptor, start, size: asked.append(size))
    export(module, target, tmp_path / "network.so")
    assert len(asked) == 2 and all(ROOM + weights <= size < ROOM + 2 * weights for size in asked)


@pytest.mark.parametrize(
    ("outputs", "refused"),
    [
        ([[0.0, -np.inf], [1.0, 2.0]], False),
        ([[-np.inf, -np.inf], [1.0, 2.0]], False),
        ([[-np.inf, np.inf]], True),
        ([[1.0, 2.0], [np.nan, 1.0]], True),
    ],
    ids=["a masked output", "a mask", "infinities alone", "no number"],
)
def test_an_output_may_have_infinities_beside_something_to_compare(monkeypatch, make_setup, outputs, refused):
    arrays = [np.array(output) for output in outputs]
    workshop = network._Workshop("net", None, None, make_setup(), [], arrays, Path("folder"))
    ran = SimpleNamespace(outputs=arrays, first_ms=network.SLOW_MS)  # it is not run once more
    monkeypatch.setattr(network, "export", lambda *_: None)
    monkeypatch.setattr(workshop, "_running", lambda library: nullcontext(ran))
    with pytest.raises(UsageError, match="own output on its example input is not finite") if refused else nullcontext():
        workshop.build_untuned()


def test_a_database_of_some_records(matmul, softmax):
    """Each finds its own task again."""
    ms, target = meta_schedule(), make_target(EXTRACTION_TARGET)
    database = ms.database.MemoryDatabase()
    for number, task in enumerate((matmul, softmax)):
        sketch = task.sketches[0]
        trace = task.space.materialise(sketch, task.sample(sketch, 1)[0]).trace
        Shelf(database, task.module, target).put(trace, [1e-3 * (number + 1)])
    records = database.get_all_tuning_records()
    some = database_of([record for record in records if float(record.run_secs[0]) == 2e-3])
    assert len(some) == 1
    assert some.query_tuning_record(softmax.module, target, "main") is not None
    assert some.query_tuning_record(matmul.module, target, "main") is None


class Workload(str):
    def same_as(self, other):
        return self == other


class Records:
    """A task for each letter, with one program called so."""

    def __init__(self, names: str) -> None:
        self.names = names

    def get_all_tuning_records(self) -> list[Record]:
        return [Record(name) for name in self.names]


class Record(str):
    workload = property(lambda self: Workload(self))


@pytest.mark.parametrize(("broken", "wrong", "left_out"), [("", "", 0), ("b", "", 1), ("", "c", 1), ("a", "d", 2), ("abcd", "", 4)])
def test_a_wrong_winner_never_spoils_the_rest(monkeypatch, make_setup, broken, wrong, left_out):
    """Programs of ``broken`` cannot be built, those of ``wrong`` compute something else; the others are used all the same."""
    workshop = network._Workshop("net", None, None, make_setup(), [], [np.ones(2)], Path("folder"))
    applied = []

    def apply(records):
        applied[:] = records
        if set(records) & set(broken):
            raise PlatformError("TVM cannot build it")

    monkeypatch.setattr(workshop, "_apply", apply)
    ran = lambda library: nullcontext(SimpleNamespace(outputs=[np.full(2, 2.0 if set(applied) & set(wrong) else 1.0)]))  # noqa: E731
    monkeypatch.setattr(workshop, "_running", ran)
    assert workshop.build_tuned(Records("abcd")) == left_out
    assert applied == [name for name in "abcd" if name not in broken + wrong] and workshop.difference == 0.0


def test_a_winner_that_tvm_cannot_apply_spoils_no_other(monkeypatch, make_setup):
    """TVM raises what it likes where it applies programs and folds their weights."""
    workshop = network._Workshop("net", None, None, make_setup(), [], [np.ones(2)], Path("folder"))
    exported = []

    def apply(module, target, records):
        if "c" in records:
            raise RuntimeError("ScheduleError: cannot tile\nthe last line")
        return list(records)

    monkeypatch.setattr(network, "database_of", list)
    monkeypatch.setattr(network, "apply_database", apply)
    monkeypatch.setattr(network, "export", lambda applied, target, path: exported.append(applied))
    monkeypatch.setattr(workshop, "_running", lambda library: nullcontext(SimpleNamespace(outputs=[np.ones(2)])))
    assert workshop.build_tuned(Records("abcd")) == 1 and workshop.kept == list("abd") == exported[-1]


def test_where_nothing_can_be_built_any_more_no_program_is_blamed(monkeypatch, make_setup):
    """A full disk, say: the network was built before it was tuned, and what was measured is good."""
    workshop = network._Workshop("net", None, None, make_setup(), [], [np.ones(2)], Path("folder"))

    def full(records):
        raise PlatformError("no space left on device")

    monkeypatch.setattr(workshop, "_apply", full)
    said = r"net, which was built and run before it was tuned, cannot be now \(no space left on device\); what was measured is kept"
    with pytest.raises(PlatformError, match=said):
        workshop.build_tuned(Records("abcd"))


def test_one_failure_that_does_not_come_again_costs_no_program(monkeypatch, make_setup):
    workshop = network._Workshop("net", None, None, make_setup(), [], [np.ones(2)], Path("folder"))
    failures = [PlatformError("killed for memory")]

    def apply(records):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(workshop, "_apply", apply)
    monkeypatch.setattr(workshop, "_running", lambda library: nullcontext(SimpleNamespace(outputs=[np.ones(2)])))
    assert workshop.build_tuned(Records("abcd")) == 0 and workshop.kept == list("abcd")


def test_tasks_are_told_as_they_were_built(monkeypatch):
    """The first by another program than its fastest, the second by TVM's own."""
    monkeypatch.setattr(network, "structural_key", lambda module: module)
    times = [TaskTime("conv", 1.0, 2.0, 8, key="c"), TaskTime("matmul", 2.0, 3.0, 8, key="m"), TaskTime("mean", 1.0, None, 1, key="n")]
    kept = [SimpleNamespace(workload=SimpleNamespace(mod="c"), run_secs=[2.5e-3])]
    assert [time.latency_ms for time in network._as_built(times, kept)] == [2.5, None, None]


def test_a_winner_that_gave_way_is_not_said_to_fail(monkeypatch):
    """The first task has its winner, whose output was compared; the second another program, of which nobody knows more."""
    monkeypatch.setattr(network, "structural_key", lambda module: module)
    times = [TaskTime(name, 1.0, 2.0, 8, key=name, checked=True) for name in ("conv", "matmul")]
    kept = [SimpleNamespace(workload=SimpleNamespace(mod=name), run_secs=[s]) for name, s in (("conv", 2e-3), ("matmul", 3e-3))]
    built = network._as_built(times, kept)
    assert [time.checked for time in built] == [True, False]
    said = unchecked_text({"task_times": [asdict(time) for time in built]})
    assert said == " The measured programs of 1 of 2 tasks are not known to be right by themselves; the network's output is."
    assert unchecked_text({"task_times": [asdict(built[0])]}) == ""


def test_records_are_told_apart_by_their_task():
    assert [len(task) for task in by_task([Record("a"), Record("b"), Record("a")])] == [2, 1]
