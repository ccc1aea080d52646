"""Programs of tuned tasks become candidates of other tasks of their kind."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tcl_core.models.cost_model import CostModel
from tcl_core.compat import load_tvm, make_target
from tcl_core.errors import DataError, UsageError
from tcl_core.measure.job import Outcome
from tcl_core.measure.runner import Runner
from tcl_core.programs.registers import splitting
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, trace_to_json
from tcl_core.programs.tasks import EXTRACTION_TARGET, describe
from tcl_core.programs.tuning_logs.opening import MEASURED, RECORDS
from tcl_core.tuning.database import Shelf, open_database
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.tuning.transfer import FEW, TRANSFERRED, Donors, adapted, nearest, retiled, structure, transferred
from tcl_core.tuning.tuner import Tunable, Tuner
from tests.conftest import TinyTask, matmul_module

HARDWARE = (1.0,) * 11
ANY = lambda sketch, decisions: np.ones(len(decisions), dtype=bool)  # noqa: E731


@pytest.fixture(scope="module")
def cubes():
    """Products of square matrices: edge -> task."""
    return {edge: TinyTask(describe("fused_matmul_relu", matmul_module(edge, edge, edge))) for edge in (128, 112, 96)}


def search_of(tiny, model=None):
    return ScheduleSearch(tiny.task, model, HARDWARE, EXTRACTION_TARGET, SearchSettings(population=32, generations=2))


class Sum:
    """A champion that likes large tokens, or small ones."""

    def __init__(self, sign=1):
        self.sign = sign

    def predict(self, samples):
        return self.sign * samples.features.sum(axis=(1, 2)).astype("float32")

    def embed(self, samples):
        return samples.features.sum(axis=1)

    predict_and_embed = CostModel.predict_and_embed


def fill(folder, tiny, programs, target=EXTRACTION_TARGET):
    """A database of the task with these (sketch, decisions, latencies); their canonical decisions."""
    shelf = Shelf(open_database(folder), tiny.module, make_target(target))
    found = []
    for number, decisions, latencies_s in programs:
        schedule = tiny.space.materialise(tiny.sketches[number], decisions)
        shelf.put(schedule.trace, latencies_s)
        canonical = tiny.sketches[number].decisions_of(schedule.trace.simplified(remove_postproc=True))
        found.append((number, tuple(canonical.tolist())))
    return found


def some(tiny, number, count, latencies_s=(1e-3,), seed=0):
    """Different programs of a sketch, each slower than the one before."""
    rows = np.unique(tiny.sample(tiny.sketches[number], 4 * count, seed), axis=0)
    rows = np.random.default_rng(seed).permutation(rows)[:count]
    return [(number, row, tuple((1 + n) * s for s in latencies_s)) for n, row in enumerate(rows)]


def donors_of(folder, **options):
    return Donors([folder], EXTRACTION_TARGET, **options)


# --- adaptation ---


@pytest.mark.parametrize(
    "factors, extent, expected",
    [
        ((2, 4, 2, 8), 128, (2, 4, 2, 8)),
        ((2, 4, 2, 8), 96, (3, 2, 2, 8)),  # 12 is left for the third level, 6 for the second
        ((1, 1, 1, 64), 96, (3, 1, 1, 32)),
        ((4, 7, 1, 2), 32, (16, 1, 1, 2)),
        ((1, 2, 7, 4), 7, (1, 1, 7, 1)),
        ((1, 16), 1, (1, 1)),
        ((8, 4), 1024, (256, 4)),
    ],
)
def test_inner_factors_stay_as_far_as_they_divide(factors, extent, expected):
    assert retiled(factors, extent) == expected and np.prod(expected) == extent


@pytest.mark.parametrize(
    "factors, extent, expected",
    [
        ((2, 4, 2, 8), 128, (2, 4, 2, 8)),
        ((25, 1, 1, 8), 198, (22, 1, 1, 9)),
        ((5, 1, 5, 8), 198, (2, 1, 11, 9)),  # of the 22 left 11 is nearer to 5 than 2 is
        ((1, 2, 7, 4), 7, (1, 1, 1, 7)),
        ((0, 0, -3, 8), 16, (2, 1, 1, 8)),  # no tiling at all
    ],
)
def test_where_factors_do_not_divide_the_nearest_that_do_are_tried_too(factors, extent, expected):
    choices = [row for row in itertools.product(*[[d for d in range(1, extent + 1) if extent % d == 0]] * 4) if np.prod(row) == extent]
    assert nearest(factors, np.array(choices)) == expected


def decisions_by_hand(tiny, number, tilings, unroll):
    """Decisions of a sketch with these tilings in order; its parallel constant as it is."""
    values, found = iter(tilings), []
    for slot in tiny.sketches[number].slots:
        fixed = slot.choices[0].tolist() if slot.kind == "constant" else [unroll]
        found += next(values) if slot.kind == "tile" else fixed
    return tuple(found)


def test_tilings_follow_the_extents_and_all_else_is_kept(cubes):
    given = decisions_by_hand(cubes[128], 0, [(2, 4, 2, 8), (1, 2, 1, 64), (32, 4)], unroll=2)
    expected = decisions_by_hand(cubes[96], 0, [(3, 2, 2, 8), (3, 1, 1, 32), (24, 4)], unroll=2)
    near = decisions_by_hand(cubes[96], 0, [(2, 3, 2, 8), (1, 2, 1, 48), (24, 4)], unroll=2)
    assert adapted(given, cubes[96].sketches[0], ANY) == [expected, near]
    assert adapted(given, cubes[128].sketches[0], ANY) == [given]
    assert adapted(given, cubes[128].sketches[0], lambda sketch, decisions: (decisions != 64).all(axis=1)) == [given]  # of known latency


def test_of_the_nearest_columns_those_that_llvm_splits_badly_give_way(cubes):
    """48 is three vectors of 16, which take several times as long as two or one; where nothing splits well, the nearest stays."""
    given = decisions_by_hand(cubes[128], 0, [(2, 4, 2, 8), (1, 2, 1, 64), (32, 4)], unroll=2)
    kept = decisions_by_hand(cubes[96], 0, [(3, 2, 2, 8), (3, 1, 1, 32), (24, 4)], unroll=2)
    near = decisions_by_hand(cubes[96], 0, [(2, 3, 2, 8), (1, 3, 1, 32), (24, 4)], unroll=2)
    sketch = cubes[96].sketches[0]
    assert adapted(given, sketch, splitting(cubes[96].sketches, 64)) == [kept, near]
    assert adapted(given, sketch, lambda sketch, decisions: ~ANY(sketch, decisions)) == adapted(given, sketch, ANY)


# --- who is a donor of whom ---


def test_sketches_meet_by_what_they_do_not_by_their_numbers(cubes, tmp_path):
    """The donor's last sketch, which is the first of its database, is the task's last one."""
    last = len(cubes[128].sketches) - 1
    fill(tmp_path, cubes[128], some(cubes[128], last, 3))
    donors = donors_of(tmp_path)
    assert [len(donors.of(sketch)) for sketch in cubes[96].sketches] == [0] * last + [3]
    assert {index for index, _ in transferred(search_of(cubes[96]), donors)} == {last}


def conv_module(channels, adds, width=8):
    """relu(conv2d(x, w) + ...): 1 x 1 kernel, and so many arrays added."""
    from tvm import te, topi

    shape = (1, channels, width, width)
    x, *others = (te.placeholder(shape, name=f"x{n}") for n in range(1 + adds))
    w = te.placeholder((channels, channels, 1, 1), name="w")
    out = topi.nn.conv2d(x, w, 1, 0, 1)
    for other in others:
        out = topi.add(out, other)
    return load_tvm().IRModule({"main": te.create_prim_func([x, w, *others, topi.nn.relu(out)])})


def test_what_is_inlined_may_differ(tmp_path):
    """A sum more before the ReLU, and other channels: the decisions of the convolution are of use all the same."""
    donor, task = (TinyTask(describe("fused_conv2d", conv_module(*sizes))) for sizes in ((16, 1), (24, 2)))
    assert [structure(trace_to_json(s.trace)) for s in donor.sketches] == [structure(trace_to_json(s.trace)) for s in task.sketches]
    assert [len(s.signature) for s in donor.sketches] != [len(s.signature) for s in task.sketches]
    ((number, given),) = fill(tmp_path, donor, some(donor, 1, 1))
    ((index, found),) = transferred(search_of(task), donors_of(tmp_path))
    assert index == number == 1
    for slot in task.sketches[1].slots:
        factors = found[slot.columns]
        assert factors == (retiled(given[slot.columns], int(np.prod(factors))) if slot.kind == "tile" else given[slot.columns])


def test_other_operators_have_no_donor(matmul, conv, softmax, tmp_path):
    fill(tmp_path, matmul, some(matmul, 0, 3))
    donors = donors_of(tmp_path)
    assert len(donors.of(matmul.sketches[0])) == 3
    for other in (conv, softmax):
        assert [list(donors.of(sketch)) for sketch in other.sketches] == [[]] * len(other.sketches)
        assert transferred(search_of(other), donors) == []


def test_a_donor_ran_each_time_and_is_one_of_the_fastest(cubes, tmp_path):
    tiny = cubes[128]
    programs = some(tiny, 0, FEW + 4)
    ran = fill(tmp_path, tiny, programs)
    failed = fill(tmp_path, tiny, [(*programs[0][:2], ()), (*programs[2][:2], ())])  # in the finals
    fill(tmp_path, tiny, [(*programs[-1][:2], (1e-6,) * 3)])  # of its latencies the median counts
    found = [(0, donor.decisions) for donor in donors_of(tmp_path).of(tiny.sketches[0])]
    assert failed == [ran[0], ran[2]]
    assert found == [ran[-1], ran[1], *ran[3 : 1 + FEW]]


def test_one_database_twice_is_one(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 2))
    assert len(Donors([tmp_path, tmp_path], EXTRACTION_TARGET).of(cubes[96].sketches[0])) == 2


@pytest.mark.parametrize("champion", [None, Sum(1), Sum(-1)])
def test_the_same_task_is_given_its_very_programs(cubes, tmp_path, champion):
    """Before those of other tasks, however fast or well ranked, and the fastest first; each is the program that was measured."""
    tiny = cubes[128]
    own = fill(tmp_path, tiny, [(number, decisions, (1.0 - number / 9,)) for number in (0, 1) for _, decisions, _ in some(tiny, number, 1)])
    fill(tmp_path, cubes[96], some(cubes[96], 0, 4, (1e-6,)))
    donors = donors_of(tmp_path)
    search = search_of(tiny, champion)
    found = transferred(search, donors)
    assert found[:2] == own[::-1] and len(found) == TRANSFERRED
    traces = {search.candidate_of(record.trace): record for record in open_database(tmp_path).get_all_tuning_records()}
    for number, decisions in own:
        again = search.space.materialise(search.sketches[number], decisions).mod
        schedule = load_tvm().s_tir.Schedule(tiny.module)
        traces[number, decisions].trace.apply_to_schedule(schedule, remove_postproc=False)
        load_tvm().ir.assert_structural_equal(again, schedule.mod)


def test_without_a_champion_the_nearest_extents_come_first(cubes, tmp_path):
    """112 is nearer to 96 than 128 is, whatever the latencies."""
    fill(tmp_path, cubes[128], some(cubes[128], 0, 2, (1e-6,)))
    fill(tmp_path, cubes[112], some(cubes[112], 0, 2, (1.0,)))
    search, donors = search_of(cubes[96]), donors_of(tmp_path)
    sketch = cubes[96].sketches[0]
    near = {way for d in donors.of(sketch) if d.task_key == cubes[112].task.key for way in adapted(d.decisions, sketch, search.splits)}
    assert len(near) > 1 and {decisions for _, decisions in transferred(search, donors)[:2]} <= near
    assert len(transferred(search, donors_of(tmp_path, most=1))) == 1


def test_the_champion_ranks_the_donors(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 4))
    fill(tmp_path, cubes[112], some(cubes[112], 0, 4))
    search, donors = search_of(cubes[96], Sum()), donors_of(tmp_path)
    sketch = cubes[96].sketches[0]
    offered = sorted({(0, way) for d in donors.of(sketch) for way in adapted(d.decisions, sketch, search.splits)})
    scores = dict(zip(offered, search.view(offered).scores.tolist(), strict=True))
    assert len(set(scores.values())) > TRANSFERRED
    assert transferred(search, donors) == sorted(offered, key=lambda c: -scores[c])[:TRANSFERRED]


def test_what_tvm_refuses_is_passed_over(cubes, tmp_path, monkeypatch):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 4))
    search, donors = search_of(cubes[96]), donors_of(tmp_path, most=100)
    wanted, canonical = transferred(search, donors), DesignSpace.canonical

    def refuse(space, sketch, decisions):
        if tuple(decisions) == wanted[0][1]:
            raise InvalidProgram("rejected")
        return canonical(space, sketch, decisions)

    monkeypatch.setattr(DesignSpace, "canonical", refuse)
    assert transferred(search, donors) == wanted[1:]


# --- databases ---


def test_a_folder_that_tuning_wrote_is_a_database_and_stays_as_it_is(cubes, tmp_path):
    """Also one whose last line a kill has torn: it is refused, and nothing is cut off."""
    fill(tmp_path / MEASURED, cubes[128], some(cubes[128], 0, 2))
    with (tmp_path / MEASURED / RECORDS).open("a") as file:
        file.write('[0,[[["GetSB')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    donors = donors_of(tmp_path)
    assert len(donors.of(cubes[96].sketches[0])) == 2 and donors.refused == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before and len(before) == 2


def test_what_is_no_database_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="^there is no .*nowhere to start from; give the folder of a tuned network"):
        donors_of(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=f"has no {RECORDS}; give a log file or a MetaSchedule database"):
        donors_of(tmp_path)
    (tmp_path / RECORDS).write_text("[0, []]\n")
    with pytest.raises(UsageError, match="its workloads, database_workload.json, are not beside it"):
        donors_of(tmp_path)
    (tmp_path / RECORDS).write_text(json.dumps({"i": [["[]", "llvm"]], "r": [[1], 0, 1, 1]}) + "\n")
    with pytest.raises(UsageError, match="is a log of Ansor, whose programs TVM cannot replay; give a MetaSchedule database"):
        donors_of(tmp_path)


def test_a_damaged_database_is_a_sentence(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 1))
    entry = json.loads((tmp_path / RECORDS).read_text())
    entry[1][0][0][0] = ["GetSBlock", [], ["nowhere", "main"], ["b0"]]
    for content, said in (
        ("", "is empty"),
        ("no json\n", "is no tuning log"),
        (json.dumps(entry), r"no line of the database in .* is a program \(line 1: .*cannot be replayed .*\); give another one"),
    ):
        (tmp_path / RECORDS).write_text(content)
        with pytest.raises(DataError, match=said):
            donors_of(tmp_path)


@pytest.mark.parametrize(
    "theirs, said",
    [({"kind": "llvm", "mcpu": "haswell"}, "llvm -mcpu=haswell"), ({"kind": "cuda", "arch": "sm_80"}, "cuda")],
)
def test_a_database_of_another_cpu_is_refused_and_both_are_said(cubes, tmp_path, theirs, said):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 1))
    entry = json.loads((tmp_path / RECORDS).read_text())
    entry[1][2] = theirs | {"keys": [], "tag": ""}
    (tmp_path / RECORDS).write_text(json.dumps(entry) + "\n")
    ours = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
    with pytest.raises(UsageError, match=f"measured on {said}, and what is tuned runs on llvm -mcpu=skylake-avx512; give a database"):
        Donors([tmp_path], ours)


def test_the_number_of_cores_may_differ(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 1), {"kind": "llvm", "mcpu": "haswell", "num-cores": 4})
    assert len(Donors([tmp_path], {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}).of(cubes[96].sketches[0])) == 1


# --- tuning ---


class FakeRunner:
    """Every program takes a millisecond, but those of which ``answer`` says otherwise."""

    def __init__(self, answer=lambda job: None):
        self.batches, self.answer = [], answer

    def measure(self, jobs):
        self.batches.append(list(jobs))
        return [self.answer(job) or Outcome("ok", (1e-3,) * 3, checked=job.check) for job in self.batches[-1]]

    def trials(self):
        return [job for batch in self.batches for job in batch if not job.check]


def tuner_of(tinies, trials, donors=None, searches=True, database=None, **options):
    tunables = [Tunable(tiny.task, 1.0, tiny.module) for tiny in tinies]
    database = open_database(None) if database is None else database
    return Tuner(tunables, None, HARDWARE, EXTRACTION_TARGET, trials, SearchSettings(), database, donors, searches, **options)


def test_donors_are_the_first_trials_and_the_search_learns_from_them(cubes, conv, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 0, 4))
    tuner, runner = tuner_of([cubes[96], conv], 20, donors_of(tmp_path)), FakeRunner()
    given = tuner._run(0).donated
    tuner.run(runner)
    measured = [job for job in runner.trials() if job.task_key == cubes[96].task.key]
    assert len(given) == TRANSFERRED == 4 and len(runner.trials()) == 20 and len(measured) > 8
    assert {job.decisions for job in measured[:8]} >= {decisions for _, decisions in given}
    assert len({(job.trace_json, job.decisions) for job in measured}) == len(measured)
    assert set(given) <= set(tuner._run(0).search.measured) and set(given) <= set(tuner._run(0).readings)
    assert tuner.donated_tasks() == 1 and tuner._run(1).donated == []


def test_a_single_trial_is_a_donor(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 1, 4))
    tuner, runner = tuner_of([cubes[96]], 1, donors_of(tmp_path)), FakeRunner()
    tuner.run(runner)
    (job,) = runner.trials()
    assert job.decisions == tuner._run(0).donated[0][1]


def test_a_guess_is_a_donor_and_then_nothing_is_drawn_or_scored(cubes, tmp_path):
    fill(tmp_path, cubes[128], some(cubes[128], 1, 4))
    run = tuner_of([cubes[96]], 1, donors_of(tmp_path))._run(0)
    viewed = run.search.viewed
    assert run.search.candidate_of(run.guess()) in run.donated and run.search.viewed == viewed
    run.donated = []
    assert run.guess() is not None and run.search.viewed > viewed


def test_a_run_that_goes_on_measures_no_donor_twice(cubes, tmp_path):
    fill(tmp_path / "donors", cubes[128], some(cubes[128], 0, 4))
    measured = []
    for trials in (8, 16):
        tuner = tuner_of([cubes[96]], trials, donors_of(tmp_path / "donors"), database=open_database(tmp_path / "mine"))
        runner = FakeRunner()
        tuner.run(runner)
        measured += [(job.trace_json, job.decisions) for job in runner.trials()]
    assert len(measured) == 16 == len(set(measured))


def test_without_a_search_only_donors_are_measured_and_the_best_wins(cubes, conv, tmp_path):
    """Who has none stays untuned; a donor that fails is no winner."""
    fill(tmp_path, cubes[128], some(cubes[128], 0, 4))
    tuner = tuner_of([cubes[96], conv], 100, donors_of(tmp_path, most=3), searches=False)
    given = tuner._run(0).donated
    said = {given[0][1]: Outcome("crash", message="SIGSEGV"), given[2][1]: Outcome("ok", (5e-4,) * 3, checked=True)}
    runner = FakeRunner(lambda job: said.get(job.decisions))
    tuner.run(runner)
    assert sorted(job.decisions for job in runner.trials()) == sorted(decisions for _, decisions in given) and len(given) == 3
    ((number, (_, latency_s)),) = tuner._won()
    assert (number, latency_s, sum(each.latency_ms is not None for each in tuner.times()), tuner.donated_tasks()) == (0, 5e-4, 1, 1)


def test_tasks_of_one_network_lend_to_those_that_come_later(cubes, tmp_path):
    """The costliest comes first, and is asked once; who lends to whom is known again when a stopped run goes on."""
    database, runner = open_database(tmp_path), FakeRunner(lambda job: Outcome("ok", (hash(job.decisions) % 1000 / 1e6 + 1e-4,) * 3))
    tuner = tuner_of([cubes[96], cubes[128]], 12, database=database)
    tuner.run(runner)
    big, small = runner.batches[:2]
    assert {job.task_key for job in big} == {cubes[128].task.key} and {job.task_key for job in small} == {cubes[96].task.key}
    fastest = sorted(tuner._run(1).readings, key=tuner._run(1).latency_s)[:FEW]
    search = tuner._run(0).search
    offered = {(index, way) for index, decisions in fastest for way in adapted(decisions, search.sketches[index], search.splits)}
    given = tuner._run(0).donated
    assert given and set(given) <= offered and {job.decisions for job in small} >= {decisions for _, decisions in given[: len(small)]}
    assert tuner.donated_tasks() == 0  # by networks that were tuned before
    assert not tuner_of([cubes[96], cubes[128]], 12, shares=False)._run(0).donated
    for order in ([128, 96], [96, 128]):
        again = tuner_of([cubes[size] for size in order], 12, database=open_database(tmp_path))
        assert set(again._run(order.index(96)).donated) <= offered and again._run(order.index(96)).donated
        assert not again._run(order.index(128)).donated  # it came first


def test_borrowed_programs_compute_what_the_task_does(cubes, tmp_path, make_setup):
    """With the real runner, which compares the winner's output with the unscheduled program's."""
    fill(tmp_path, cubes[128], [program for number in range(3) for program in some(cubes[128], number, 2)])
    tuner, outcomes = tuner_of([cubes[96]], 100, donors_of(tmp_path), searches=False), []
    with Runner(make_setup(), workers=1) as runner:
        tuner.run(runner, outcomes.append)
    assert (
        len(outcomes) == TRANSFERRED
        and {outcome.error for outcome in outcomes} == {"ok"}
        and sum(each.latency_ms is not None for each in tuner.times()) == 1
    )
