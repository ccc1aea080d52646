from __future__ import annotations

import math
import re
import resource
import shutil
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tcl_core.compat import load_tvm, make_target, meta_schedule, structural_key
from tcl_core.errors import DataError, PlatformError, TclError
from tcl_core.measure.job import Outcome
from tcl_core.measure.runner import Runner
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.programs.tuning_logs.opening import RECORDS
from tcl_core.tuning import database, tuner as tuner_module
from tcl_core.tuning.budget import Turn
from tcl_core.tuning.database import Shelf, open_database, seconds_of
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.tuning.tuner import AGAIN, Tunable, Tuner

HARDWARE = (1.0,) * 11


class FakeRunner:
    """Latencies by a hash of the decisions, or as ``answer`` says; keeps the batches of jobs that it was given."""

    def __init__(self, answer=None):
        self.batches, self.answer = [], answer or (lambda job: None)

    @property
    def jobs(self):
        return [job for batch in self.batches for job in batch]

    def measure(self, jobs):
        self.batches.append(list(jobs))
        return [self.answer(job) or self.usual(job) for job in self.batches[-1]]

    def usual(self, job):
        return Outcome("ok", (latency_s(job),) * 3, checked=job.check)


def latency_s(job):
    return (100 + zlib.crc32(repr((job.trace_json, job.decisions)).encode()) % 900) * 1e-6


def key_of(job):
    return job.task_key, job.trace_json, job.decisions


class Large:
    """A champion that likes large decisions."""

    def predict_and_embed(self, samples):
        scores = samples.features.sum(axis=(1, 2)).astype("float32")
        return scores, scores[:, None]


def tuner_of(tasks, trials, database=None, seed=0, model=None):
    tunables = [Tunable(t.task, weight, t.module) for t, weight in tasks]
    database = open_database(None) if database is None else database  # an empty one is false
    return Tuner(tunables, model, HARDWARE, EXTRACTION_TARGET, trials, SearchSettings(seed=seed), database)


@pytest.fixture
def tasks(matmul, conv):
    return [(conv, 3.0), (matmul, 1.0)]


def rounds_of(runner):
    """Without the finals."""
    return [batch for batch in runner.batches if not any(job.check for job in batch)]


def trials_of(runner):
    return [job for job in runner.jobs if not job.check]


@pytest.mark.parametrize("trials", [1, 7, 20])
def test_exactly_the_trials_are_measured_and_no_program_twice(tasks, trials):
    runner, told = FakeRunner(), []
    tuner = tuner_of(tasks, trials)
    tuner.run(runner, told.append)
    measured = trials_of(runner)
    assert len(measured) == trials == len(told) == len(set(map(key_of, measured)))


def test_the_worker_finds_a_task_in_its_caches_and_knows_its_best(tasks, matmul, conv):
    """The task's own key and its unscheduled module, a sketch and decisions, and the fastest latency so far."""
    runner = FakeRunner()
    tuner_of(tasks, 40).run(runner)
    modules, best = {t.task.key: t.task.module_json for t in (matmul, conv)}, {}
    for batch in rounds_of(runner):
        for job in batch:
            assert job.module_json == modules[job.task_key] and job.trace_json and job.decisions
            assert job.best_s == best.get(job.task_key, math.inf)
        for job in batch:
            best[job.task_key] = min(latency_s(job), best.get(job.task_key, math.inf))
    assert {job.task_key for job in runner.jobs} == set(modules)


def test_the_longest_builds_come_first(matmul):
    """By what they unroll, as the sketch says."""
    runner, tuner = FakeRunner(), tuner_of([(matmul, 1.0)], 16)
    tuner.run(runner)
    search = tuner._runs[0].search
    for batch in rounds_of(runner):
        steps = [search.unroll((search.traces_json.index(job.trace_json), job.decisions)) for job in batch]
        assert steps == sorted(steps, reverse=True)


def test_a_task_whose_first_round_failed_is_tried_again(tasks, conv):
    """All first eight convolutions crash."""
    seen = []

    def answer(job):
        seen.append(job.task_key)
        return Outcome("crash", message="SIGSEGV") if job.task_key == conv.task.key and seen.count(job.task_key) <= 8 else None

    tuner = tuner_of(tasks, 40)
    tuner.run(FakeRunner(answer))
    assert Counter(seen)[conv.task.key] > 10 and sum(each.latency_ms is not None for each in tuner.times()) == 2


def test_nothing_but_failures_is_no_winner(tasks):
    tuner = tuner_of(tasks, 20)
    tuner.run(FakeRunner(lambda job: Outcome("timeout", message="not run")))
    assert sum(each.latency_ms is not None for each in tuner.times()) == 0 and len(tuner.winners()) == 0
    assert tuner.said() == "0 of 2 tasks run"
    assert [time.latency_ms for time in tuner.times()] == [None, None]


def test_what_was_disturbed_is_measured_again(matmul):
    """The undisturbed reading counts; a program that is disturbed each time is measured three times, and the faster counts."""
    times, restless = Counter(), []

    def answer(job):
        times[key_of(job)] += 1
        if len(times) == 1:
            restless[:] = [key_of(job)]
        if key_of(job) in restless:
            return Outcome("ok", ((4 - times[key_of(job)]) * 1e-3,), disturbed=True)
        return Outcome("ok", (9e-3 if times[key_of(job)] == 1 else 5e-4,), disturbed=times[key_of(job)] == 1)

    tuner = tuner_of([(matmul, 1.0)], 40)
    tuner.run(FakeRunner(answer))
    run = tuner._runs[0]
    again = [run.latency_s(candidate) for candidate in run.readings]
    assert max(times.values()) <= 1 + AGAIN + 1 + AGAIN and times[restless[0]] >= 1 + AGAIN
    assert sum(times.values()) - 40 <= 10 + 3 + 10  # a quarter of the trials, and the finals
    assert 5e-4 in again and min(again) == 5e-4


class GivesUp(FakeRunner):
    """After so many jobs, whose outcomes it gives before it says so."""

    def __init__(self, jobs, finals=False):
        super().__init__()
        self.left, self.finals = jobs, finals

    def measure(self, jobs):
        for outcome in super().measure(jobs):
            if self.finals and not outcome.checked:
                yield outcome
                continue
            if not self.left:
                raise PlatformError("the workers died 3 times")
            self.left -= 1
            yield outcome


def test_a_runner_that_gives_up_loses_nothing_that_it_measured(tasks, tmp_path):
    """Of a turn; the same command goes on from there."""
    tuner = tuner_of(tasks, 24, open_database(tmp_path))
    with pytest.raises(PlatformError, match="died 3 times"):
        tuner.run(GivesUp(13))
    assert len(open_database(tmp_path)) == 13
    again, runner = tuner_of(tasks, 24, open_database(tmp_path)), FakeRunner()
    again.run(runner)
    assert len(trials_of(runner)) == 24 - 13


def test_who_was_read_fast_by_luck_wins_no_final(matmul):
    """Its second measurement counts alone, and whoever was read to be faster than that has one too."""
    run = tuner_of([(matmul, 1.0)], 8)._run(0)
    lucky, better, slow = run.propose(3)
    for candidate, seconds in ((lucky, 100e-6), (better, 115e-6), (slow, 125e-6)):
        run.tell(candidate, Outcome("ok", (seconds,) * 5))
    assert run.finalists() == [lucky]
    run.confirm(lucky, Outcome("ok", (130e-6,), checked=True))
    assert run.finalists() == [better, slow]
    run.confirm(better, Outcome("ok", (116e-6,), checked=True))
    run.confirm(slow, Outcome("ok", (140e-6,), checked=True))
    assert run.finalists() == [] and run.winner()[1] == 116e-6 and [latency_s for _, latency_s in run.best(3)] == [116e-6, 130e-6, 140e-6]


def test_a_machine_that_has_become_slower_makes_nobody_a_finalist(matmul):
    """Others' first readings are of the faster hour, and count as much longer as finalists take now."""
    run = tuner_of([(matmul, 1.0)], 8)._run(0)
    best, other = run.propose(2)
    for candidate, seconds in ((best, 100e-6), (other, 125e-6)):
        run.tell(candidate, Outcome("ok", (seconds,) * 5))
    assert run.confirm(best, Outcome("ok", (130e-6,), checked=True)) == pytest.approx(1.3)
    assert run.finalists() == [other] and run.finalists(1.2) == []
    assert tuner_module._drift([1.3] * 7) == 1.0 and tuner_module._drift([1.3] * 8) == pytest.approx(1.3)
    assert tuner_module._drift([0.9] * 6 + [1.4] * 6) == 1.0  # a quarter take no longer


def test_a_program_that_nobody_checked_is_told_and_gives_way_to_one_that_was(matmul):
    run = tuner_of([(matmul, 1.0)], 8)._run(0)
    fast, slow = run.propose(2)
    for candidate, seconds, checked in ((fast, 100e-6, False), (slow, 105e-6, True)):
        run.tell(candidate, Outcome("ok", (seconds,)))
        run.confirm(candidate, Outcome("ok", (seconds,), checked=checked))
    assert run.winner()[1] == 105e-6 and run.is_checked
    tuner = tuner_of([(matmul, 1.0)], 8)
    tuner.run(FakeRunner(lambda job: Outcome("ok", (latency_s(job),))))
    assert [(time.checked, time.latency_ms is None) for time in tuner.times()] == [(False, False)]
    checked = tuner_of([(matmul, 1.0)], 8)
    checked.run(FakeRunner())
    assert [time.checked for time in checked.times()] == [True]


def test_no_further_finals_begin_when_the_time_is_over(tasks, clock):
    """A check takes ten seconds, for the untuned program is slow; others are faster than each winner's second reading."""

    def answer(job):
        clock[0] += 10.0 if job.check else 1.0
        return Outcome("ok", (9e-3 if job.check else latency_s(job),), checked=job.check)

    runner = FakeRunner(answer)
    tuner_of(tasks, None).run(runner, seconds=40.0)
    assert sum(any(job.check for job in batch) for batch in runner.batches) == 1


def test_a_task_that_had_one_program_borrows_in_its_first_turn_of_several(matmul, monkeypatch):
    """Small tasks open with one program each, before anybody has lent."""
    asked = []
    monkeypatch.setattr(tuner_module, "transferred", lambda search, donors: asked.append(search.space.task_key) or [])
    tuner = tuner_of([(matmul, 1.0)], 9)
    tuner._run(0)
    assert asked == []
    tuner.budget.next = iter([Turn(0, 1), Turn(0, 4), Turn(0, 4), None]).__next__
    runner = FakeRunner()
    tuner.run(runner)
    assert asked == [matmul.task.key] and [len(batch) for batch in rounds_of(runner)] == [1, 4, 4]


def test_finals_are_kept_as_they_go(tasks, tmp_path, monkeypatch):
    """Of many tasks they take minutes."""
    monkeypatch.setattr(tuner_module, "AT_ONCE", 1)
    tuner = tuner_of(tasks, 24, open_database(tmp_path))
    with pytest.raises(PlatformError, match="died 3 times"):
        tuner.run(GivesUp(1, finals=True))
    assert len(open_database(tmp_path)) == 24 + 1


def test_where_minutes_are_given_a_quarter_of_what_was_measured_is_measured_again(matmul, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(tuner_module.time, "monotonic", lambda: float(next(clock)))
    runner = FakeRunner(lambda job: Outcome("ok", (latency_s(job),), disturbed=True, checked=job.check))
    tuner = tuner_of([(matmul, 1.0)], None)
    tuner.run(runner, seconds=20.0)
    measured = sum(account.trials for account in tuner.budget.accounts)
    again = len(runner.jobs) - measured - len(tuner._runs[0].final)
    assert measured >= 16 and 0 < again <= 0.25 * (measured + len(tuner._runs[0].final))


def test_the_winner_is_the_fastest_of_the_second_measurements(matmul):
    """The luckiest of the first measurements is behind in the second; the others that are close are measured again as well."""
    first, again = {}, Counter()

    def answer(job):
        if not job.check:
            first[key_of(job)] = 1e-3 + 1e-5 * len(first)
            return Outcome("ok", (first[key_of(job)],) * 3)
        again[key_of(job)] += 1
        lucky = first[key_of(job)] == 1e-3
        return Outcome("ok", (2e-3 if lucky else first[key_of(job)],) * 4, checked=True)

    tuner = tuner_of([(matmul, 1.0)], 12)
    tuner.run(FakeRunner(answer))
    ((_, (_, winner_s)),) = tuner._won()
    assert len(again) == 3 and set(again.values()) == {1}
    assert winner_s == pytest.approx(1.01e-3)
    (record,) = tuner.winners().get_all_tuning_records()
    assert [float(s) for s in record.run_secs] == [winner_s]


def test_a_winner_whose_output_is_wrong_loses_to_the_next_one(matmul):
    """The three fastest compute something else."""
    wrong = []

    def answer(job):
        if job.check and len(wrong) < 3:
            wrong.append(latency_s(job))
            return Outcome("wrong-result", message="differs by 0.3")
        return None

    runner, tuner = FakeRunner(answer), tuner_of([(matmul, 1.0)], 24)
    tuner.run(runner)
    ((_, (_, winner_s)),) = tuner._won()
    assert len(wrong) == 3 and winner_s not in wrong
    assert winner_s == min({latency_s(job) for job in runner.jobs} - set(wrong))


@pytest.fixture
def clock(monkeypatch):
    """Stands still unless told."""
    now = [1000.0]
    monkeypatch.setattr(tuner_module.time, "monotonic", lambda: now[0])
    return now


def test_a_run_on_the_clock_ends_in_time_with_its_finals(tasks, clock):
    """A program takes a second: after 20 of them 8 more and up to six finalists would be too late."""

    def answer(job):
        clock[0] += 1.0

    runner, tuner = FakeRunner(answer), tuner_of(tasks, None)
    tuner.run(runner, seconds=30.0)
    assert len(trials_of(runner)) >= 8 and len(runner.jobs) <= 30 and sum(each.latency_ms is not None for each in tuner.times()) == 2
    assert len(runner.jobs) + 8 + len(trials_of(runner)) > 30  # and does not end long before


def test_a_slow_start_does_not_end_a_run_on_the_clock(tasks, clock):
    """The first program takes ten seconds, for workers start; the others a tenth."""

    def answer(job):
        clock[0] += 0.1 if answer.started else 10.0
        answer.started = True

    answer.started = False
    runner = FakeRunner(answer)
    tuner_of(tasks, None).run(runner, seconds=30.0)
    assert 100 < len(runner.jobs) <= 201


def test_a_run_that_goes_on_has_minutes_of_its_own(tasks, clock, tmp_path):
    def answer(job):
        clock[0] += 1.0

    counts = []
    for _ in range(2):
        runner = FakeRunner(answer)
        tuner_of(tasks, None, open_database(tmp_path)).run(runner, seconds=40.0)
        counts.append(len(trials_of(runner)))
    assert min(counts) >= 8 and len({key_of(job) for job in trials_of(runner)}) == counts[1]


def test_what_is_said_while_tuning(tasks):
    runner, tuner, said = FakeRunner(), tuner_of(tasks, 40), []
    tuner.run(runner, lambda outcome: said.append(tuner.said()))
    assert re.fullmatch(r"network about \d+\.\d\d ms, 1 of 2 tasks run, 1 untouched", said[0])
    assert re.fullmatch(r"network \d+\.\d\d ms, last gain \d+\.\d%", said[-1])
    times = tuner.times()
    assert [(time.weight, time.trials > 7) for time in times] == [(3.0, True), (1.0, True)]
    assert sum(time.trials for time in times) == 40 and min(time.latency_ms for time in times) >= 0.1


def test_a_task_that_trials_did_not_reach_has_what_the_model_ranks_first(tasks, matmul):
    """One trial for two tasks: the other's program has no latency, is applied, and gives way to any that was measured."""
    tuner, target = tuner_of(tasks, 1, model=Large()), make_target(EXTRACTION_TARGET)
    tuner.run(FakeRunner())
    (left,) = tuner.untouched()
    with target, tuner.winners() as database:
        tuner.guess(left, database)
        (record,) = [r for r in database.get_all_tuning_records() if not seconds_of(r)]
        assert seconds_of(record) == () and structural_key(record.workload.mod) == matmul.task.key
        guessed = database.query_ir_module(matmul.module, target, "main")
        assert structural_key(guessed) != structural_key(matmul.module)
        search = ScheduleSearch(matmul.task, Large(), HARDWARE, EXTRACTION_TARGET, SearchSettings())
        best = search.first_valid(search.guess(64))
        assert structural_key(guessed) == structural_key(best.mod)
        other = search.schedules(1)[0]
        Shelf(database, matmul.module, target).put(other.trace, [1.0])
        assert structural_key(database.query_ir_module(matmul.module, target, "main")) == structural_key(other.mod)
    assert [(time.guessed, time.latency_ms is None) for time in tuner.times()] == [(False, False), (True, True)]


def test_without_a_model_any_draw_is_better_than_what_is_written_down(tasks):
    tuner = tuner_of(tasks, 1)
    tuner.run(FakeRunner())
    database = tuner.winners()
    tuner.guess(tuner.untouched()[0], database)
    assert len(database) == 2 and [time.guessed for time in tuner.times()] == [False, True]


def test_a_task_of_which_nothing_ran_has_a_guess_too(tasks):
    tuner = tuner_of(tasks, 1, model=Large())
    tuner.budget.tell(0, [math.inf])
    assert tuner.untouched() == [0, 1]


def test_a_task_whose_finalists_all_fail_has_a_guess(tasks, conv):
    """What ran once and then no more is none."""
    tuner = tuner_of(tasks, 24, model=Large())
    tuner.run(FakeRunner(lambda job: Outcome("crash", message="SIGSEGV") if job.check and job.task_key == conv.task.key else None))
    assert tuner.budget.accounts[0].ran and tuner.untouched() == [0] and sum(each.latency_ms is not None for each in tuner.times()) == 1
    database, known = tuner.winners(), set(tuner._runs[0].readings)
    tuner.guess(0, database)
    (record,) = [r for r in database.get_all_tuning_records() if not seconds_of(r)]
    assert tuner._runs[0].search.candidate_of(record.trace) not in known
    assert [time.guessed for time in tuner.times()] == [True, False]


@pytest.mark.parametrize("seconds", [math.inf, 30.0])
def test_many_fast_and_wrong_programs_do_not_hide_the_right_ones(matmul, clock, seconds):
    """Five, each over a tenth faster than the next, so that the first round of finals has one alone; also when the time is over."""
    order = []

    def answer(job):
        clock[0] += 1.0 if math.isfinite(seconds) else 0.0
        order.extend([key_of(job)] if key_of(job) not in order else [])
        place = order.index(key_of(job))
        if job.check and place < 5:
            return Outcome("wrong-result", message="differs by 0.3")
        return Outcome("ok", ((1e-6 * 2**place if place < 5 else 1e-3 + 1e-5 * place),) * 3, checked=job.check)

    tuner = tuner_of([(matmul, 1.0)], 16 if math.isinf(seconds) else None)
    tuner.run(FakeRunner(answer), seconds=seconds)
    assert tuner.untouched() == [] and tuner.times()[0].latency_ms == pytest.approx(1.05) and tuner.times()[0].checked


def test_a_task_lends_what_ran_though_all_of_its_first_turn_failed(matmul):
    tuner = tuner_of([(matmul, 1.0)], 16)
    tuner.budget.next = iter([Turn(0, 4), Turn(0, 4), None]).__next__
    seen = []

    def answer(job):
        seen.append(job)
        return Outcome("crash", message="SIGSEGV") if len(seen) <= 4 else None

    tuner.run(FakeRunner(answer))
    assert tuner._lent == {0} and any(tuner._neighbours.of(sketch) for sketch in tuner._runs[0].search.sketches)


def test_a_finalist_that_something_disturbed_is_measured_once_more(matmul):
    """A late one beside a loud neighbour is no failure, also where no repeat is left."""
    late = []

    def answer(job):
        if job.check and key_of(job) not in late:
            late.append(key_of(job))
            return Outcome("timeout", message="late", disturbed=True)
        return None

    tuner = tuner_of([(matmul, 1.0)], 8)
    tuner._again = 0.0
    tuner.run(FakeRunner(answer))
    run = tuner._runs[0]
    assert late and run.final and {run.job(candidate).decisions for candidate in run.final} <= {key[2] for key in late}
    assert all(run.readings[candidate] for candidate in run.readings)


def test_nobody_guesses_where_nothing_is_searched(tasks):
    tunables = [Tunable(t.task, weight, t.module) for t, weight in tasks]
    bound = Tuner(tunables, Large(), HARDWARE, EXTRACTION_TARGET, 9, SearchSettings(), open_database(None), searches=False)
    bound.run(FakeRunner())
    assert bound.untouched() == []


def test_a_run_repeats_with_its_seed(tasks):
    def measured(seed):
        runner = FakeRunner()
        tuner_of(tasks, 24, seed=seed).run(runner)
        return list(map(key_of, runner.jobs))

    assert measured(1) == measured(1) != measured(2)


class Stopped(Exception):
    pass


def stopped_after(count):
    def answer(job):
        if answer.left == 0:
            raise Stopped
        answer.left -= 1

    answer.left = count
    return answer


def test_a_stopped_run_goes_on(tasks, tmp_path):
    """What its finished rounds measured is not measured again, failed programs neither, and the trials are those of one run."""
    failing = FakeRunner(stopped_after(21))
    usual = failing.usual
    failing.usual = lambda job: Outcome("crash") if latency_s(job) < 2e-4 else usual(job)
    with pytest.raises(Stopped):
        tuner_of(tasks, 40, open_database(tmp_path)).run(failing)
    kept = {key_of(job) for batch in failing.batches[:-1] for job in batch}
    with (tmp_path / RECORDS).open("a") as file:
        file.write('[0,[[["GetSB')  # torn by the kill
    runner, told = FakeRunner(), []
    tuner = tuner_of(tasks, 40, open_database(tmp_path))
    tuner.run(runner, told.append)
    fresh = {key_of(job) for job in trials_of(runner)}
    assert len(kept) >= 16 and not fresh & kept and len(fresh) == 40 - len(kept) == len(told)
    slow = [latency_s(job) for batch in failing.batches[:-1] for job in batch if latency_s(job) >= 2e-4]
    assert min(job.best_s for job in trials_of(runner)) <= min(slow)
    assert len(open_database(tmp_path)) >= 40


def test_a_torn_line_is_cut_off_without_a_moment_in_which_the_others_are_gone(tmp_path, monkeypatch):
    """A second kill, while the run goes on, must not cost what the first one left."""
    whole = "[0, []]\n" * 3
    (tmp_path / RECORDS).write_text(whole + "[0, [[[")
    emptied = lambda *_: pytest.fail("the file is written anew")  # noqa: E731
    monkeypatch.setattr(Path, "write_bytes", emptied)
    monkeypatch.setattr(Path, "write_text", emptied)
    database._cut_torn_line(tmp_path / RECORDS)
    assert (tmp_path / RECORDS).read_bytes() == whole.encode()


def test_records_are_read_once_however_many_tasks_there_are(tasks, tmp_path, monkeypatch):
    tuner_of(tasks, 20, open_database(tmp_path)).run(FakeRunner())
    reads, order = [], database._order
    monkeypatch.setattr(database, "_order", lambda file: reads.append(file) or order(file))
    again = tuner_of(tasks, 40, open_database(tmp_path))
    assert len(reads) == 1 and all(run.readings for run in again._runs.values()) and len(again._runs) == len(tasks)


def test_a_damaged_database_is_a_sentence(tmp_path):
    (tmp_path / RECORDS).write_text("no json\n")
    with pytest.raises(DataError, match="remove the folder to begin anew"):
        open_database(tmp_path)


def test_a_folder_that_cannot_be_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TclError, match="file"):
        open_database(tmp_path / "file" / "folder")


def test_real_programs_are_tuned_checked_and_applied(matmul, make_setup):
    """With the real runner: the database's program is the winner, and computes what the task does."""
    tvm, ms = load_tvm(), meta_schedule()
    tuner = tuner_of([(matmul, 1.0)], 10)
    outcomes = []
    with Runner(make_setup(), workers=1) as runner:
        tuner.run(runner, outcomes.append)
    assert len(outcomes) == 10 and {o.error for o in outcomes} == {"ok"} and sum(each.latency_ms is not None for each in tuner.times()) == 1
    with make_target(EXTRACTION_TARGET), tuner.winners() as database:
        module = ms.Database.current().query_ir_module(matmul.module, make_target(EXTRACTION_TARGET), "main")
    assert structural_key(module) != structural_key(matmul.module) and len(database) == 1
    arrays = [np.random.default_rng(n).normal(size=(32, 32)).astype(np.float32) for n in range(2)]
    tensors = [tvm.runtime.tensor(a) for a in (*arrays, np.zeros((32, 32), np.float32))]
    tvm.tirx.build(module, target=make_target(EXTRACTION_TARGET))["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-4, atol=1e-4)


def test_a_database_that_cannot_be_written_is_a_sentence(matmul, tmp_path):
    folder = tmp_path / "database"
    database = open_database(folder)
    shelf = Shelf(database, matmul.module, make_target(EXTRACTION_TARGET))
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    shelf.put(trace, [1e-3])
    shutil.rmtree(folder)  # a disk that takes nothing more
    with pytest.raises(PlatformError, match=r"cannot be kept \(.*database_tuning_record\.json.*; free some space"):
        shelf.put(trace, [1e-3])


def test_a_disk_that_takes_nothing_more_loses_no_record_silently(matmul, tmp_path):
    """TVM appends a line without a look at whether it arrived."""
    target = make_target(EXTRACTION_TARGET)
    shelf = Shelf(open_database(tmp_path), matmul.module, target)
    traces = [matmul.space.materialise(matmul.sketches[0], decisions).trace for decisions in matmul.sample(matmul.sketches[0], 2)]
    shelf.put(traces[0], [1e-3])
    kept = (tmp_path / RECORDS).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + 10, limits[1]))  # Python ignores the signal
    try:
        with pytest.raises(PlatformError, match=r"cannot be kept \(.*database_tuning_record\.json takes no more\); free some space"):
            shelf.put(traces[1], [2e-3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / RECORDS).read_bytes() == kept
    shelf.put(traces[1], [5e-4])
    again = Shelf(open_database(tmp_path), matmul.module, target)
    assert [seconds for _, seconds in again.programs()] == [(1e-3,), (5e-4,)], "in the order in which they came, not TVM's"


def test_a_run_that_goes_on_prepares_what_was_measured_alone(tasks, tmp_path):
    """The others borrow from all tasks when their turn comes."""
    stopping = FakeRunner(stopped_after(9))
    with pytest.raises(Stopped):
        tuner_of(tasks, 40, open_database(tmp_path)).run(stopping)
    assert len(stopping.batches) == 2
    first = stopping.batches[0][0].task_key
    goes_on = tuner_of(tasks, 40, open_database(tmp_path))
    assert [run.task.key for run in goes_on._runs.values()] == [first]
