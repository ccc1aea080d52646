"""Which platform a new one should learn from: probes that others measured, and what their order says."""

from __future__ import annotations


import pytest

from tcl_core.errors import DataError, UsageError
from tcl_core.params import load_params
from tcl_core.stages import probing
from tcl_core.stages.workspace import Workspace
from tcl_core.stages.probing import OF_A_TASK, choose_probes, find_similar, compare
from tests.shipped import SHIPPED

KEYS = [(f"task{task}", 0, (number,)) for task in range(10) for number in range(8)]


def seconds(keys, order=1.0) -> dict:
    return {key: 1e-3 * 2.0 ** (order * key[2][0]) for key in keys}


def test_probes_are_some_of_each_task_that_was_measured_elsewhere():
    known = {"a": seconds(KEYS[:40]), "b": seconds(KEYS[20:])}
    rows = choose_probes(KEYS, known, 24)
    assert rows == sorted(set(rows)) and 20 <= len(rows) <= 24
    per_task = {task: sum(KEYS[row][0] == task for row in rows) for task, _, _ in KEYS}
    assert max(per_task.values()) <= 2 * OF_A_TASK and sum(count > 1 for count in per_task.values()) >= 5
    for one in known.values():
        assert sum(KEYS[row] in one for row in rows) >= 8
    assert sum(KEYS[row] in known["a"] and KEYS[row] in known["b"] for row in rows) >= 8  # they tell about both


def test_probes_that_nobody_can_compare_are_not_measured():
    lone = {"a": seconds([KEYS[0], KEYS[8], ("another pool", 0, (1,)), ("another pool", 0, (2,))])}
    assert choose_probes(KEYS, lone, 24) == []
    assert len(choose_probes(KEYS, {"a": seconds(KEYS)}, 3)) <= 3


def test_the_nearest_comes_first_and_is_what_to_learn_from():
    target = seconds(KEYS[:16])
    known = {"backward": seconds(KEYS[:16], -1.0), "alike": seconds(KEYS[:12]), "apart": seconds(KEYS[40:])}
    lines = str(compare("new", target, known)).splitlines()
    assert [line.split() for line in lines[1:4]] == [["alike", "12", "0.840"], ["apart", "0", "0.500"], ["backward", "16", "0.111"]]
    assert lines[-1] == "new should learn from alike (params.yaml, chain.then: new: {prev: alike})"
    del known["alike"]
    assert str(compare("new", target, known)).splitlines()[-1].startswith("none is near new: measure more")


def test_what_cannot_be_compared_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = Workspace(params=load_params(SHIPPED))
    with pytest.raises(UsageError, match="unknown platform 'host-avx1024'"):
        find_similar(project, "host-avx1024", 48)
    monkeypatch.setattr(probing, "measure_probes", lambda *_: pytest.fail("measured"))
    with pytest.raises(DataError, match="no other platform has records to compare with; run tcl collect for one first"):
        find_similar(project, "host-avx512", 48)
    monkeypatch.setattr(Workspace, "seconds", lambda self, name: {} if name == "host-sse42" else {("of another pool", 0, ()): 1.0})
    monkeypatch.setattr(
        probing, "measure_probes", lambda workspace, platform, choose: {} if choose(KEYS) == [] else pytest.fail("measured")
    )
    with pytest.raises(DataError, match="no other platform has measured two programs of a task of the present pool"):
        find_similar(project, "host-avx512", 48)
