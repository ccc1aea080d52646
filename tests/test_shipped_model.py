"""The model that comes with TCL, with a tenth of its trees."""

from __future__ import annotations

import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import onnx_model

import tcl_core as tcl
from tcl_core import reference, shipped_model
from tcl_core.compat import make_target
from tcl_core.errors import DataError, UsageError
from tcl_core.models import catalogue
from tcl_core.models.trees import SETTINGS, TreesModel
from tcl_core.platforms import CPUS, host, target_of


@pytest.fixture(scope="module")
def data():
    return tcl.datasets.prepared()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The user's, for what few trees learn."""
    folder, few = tmp_path_factory.mktemp("cache"), replace(SETTINGS, epochs=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(catalogue, "create", lambda name: TreesModel(few))
        yield folder / "tcl" / "pretrained"
    shipped_model._learned.cache_clear()


@pytest.fixture(scope="module")
def few_trees(cache):
    """Trees of all that comes with TCL, too few to be good."""
    shipped_model._learned.cache_clear()
    return shipped_model._learned()


@pytest.fixture
def next_process(few_trees, data, monkeypatch):
    """As another process finds it, in which growing takes three programs' time; how often it grew."""
    grown = []

    def three(heap):
        grown.append(heap)
        return case.take(range(3))

    case = data.case("host-avx2").train
    monkeypatch.setattr(shipped_model, "shipped", three)
    shipped_model._learned.cache_clear()
    yield grown
    shipped_model._learned.cache_clear()


def test_it_ranks_networks_that_it_never_saw(few_trees, data):
    for platform in data.platforms:
        case = data.case(platform)
        right = tcl.figures(tcl.pretrained().predict(case.test), case.test)
        assert len(case.test) >= 16 * 30 and right["pairs"] > 0.7 and right["u16"] > 0.7


def test_a_call_as_in_the_readme_tunes_a_network(few_trees, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the lock of measuring is: other tests measure too
    weight = {"w": np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)}
    file = onnx_model(tmp_path / "net.onnx", [("MatMul", ["x", "w"], ["y"])], {"x": (16, 64), "w": (64, 32)}, {"y": (16, 32)}, weight)
    tuned = tcl.tune(file, tcl.pretrained(), minutes=0.1, out=tmp_path / "fast")
    assert tuned.trials >= 8 and tuned.reference == "ONNX's reference evaluator" and tuned.difference < 1e-5
    assert [task.checked for task in tuned.task_times if task.latency_ms is not None] == [True]
    names = {"network.so", "example.npz", "report.json", "report.md", "database", "measured", "contents.json"}
    assert {path.name for path in (tmp_path / "fast").iterdir()} == names


def test_it_is_grown_once_and_each_has_it_for_himself(few_trees, data):
    """Who teaches it more changes nobody else's."""
    first, second = tcl.pretrained("haswell").model, tcl.pretrained("nehalem").model
    assert shipped_model._learned() is few_trees and len({id(first), id(second), id(few_trees)}) == 3
    test = data.case("host-avx2").test
    assert (first.predict(test) == few_trees.predict(test)).all()


def test_the_next_process_reads_what_was_grown(few_trees, data, next_process):
    case = data.case("host-avx2")
    again = tcl.pretrained().model
    assert again is not few_trees and not next_process
    assert (again.predict(case.test) == few_trees.predict(case.test)).all()


def test_a_damaged_cache_is_grown_anew(cache, next_process, monkeypatch, tmp_path, caplog):
    shutil.copytree(cache, tmp_path / "tcl" / "pretrained")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (weights,) = tmp_path.rglob("weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-9] + bytes(9))
    tcl.pretrained()
    assert len(next_process) == 1 and "is learned again" in caplog.text
    shipped_model._learned.cache_clear()
    tcl.pretrained()
    assert len(next_process) == 1, "what was grown took the damaged one's place"


def test_of_two_threads_one_grows_it(next_process, cache, monkeypatch):
    shutil.rmtree(cache)
    found = []
    threads = [threading.Thread(target=lambda: found.append(tcl.pretrained().model)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(next_process) == 1 and len(found) == 2


def test_without_a_cache_it_is_grown(next_process, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert tcl.pretrained().model.trees and len(next_process) == 1 and "is not kept" in caplog.text


def test_a_user_without_a_home_has_it_too(next_process, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(shipped_model, "user_cache", lambda kind: Path("~nobody-of-this-name").expanduser())
    assert tcl.pretrained().model.trees and len(next_process) == 1


def test_a_user_without_a_home_reads_what_comes_with_tcl(monkeypatch):
    """Nothing of tokens is kept in a cache; what has to be lowered names the variable."""

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert len(reference.learned_sets()) == 4
    data = tcl.datasets.searched()
    assert len(data.samples(data.platforms[0])) > 100
    with pytest.raises(UsageError, match=r"no folder to keep .* \(Could not determine home directory\.\); set XDG_CACHE_HOME to one"):
        data.samples(data.platforms[0], "per-store features")


def test_a_data_set_that_is_not_whole_is_no_stages(tmp_path):
    """No stage of a project writes it, and DVC does not have it."""
    for change, said in (("cut", "install TCL again"), ("remove", "install TCL again")):
        folder = tmp_path / change
        shutil.copytree(reference.SEARCHED, folder)
        file = folder / "networks.parquet"
        if change == "cut":
            file.write_bytes(file.read_bytes()[:-20])
        else:
            file.unlink()
        with pytest.raises(DataError, match=said) as raised:
            tcl.datasets.reference(folder)
        assert "dvc" not in str(raised.value) and "stage" not in str(raised.value)


@pytest.mark.parametrize("changed", ["data", "settings", "code", "xgboost"])
def test_another_making_is_another_model(changed, monkeypatch):
    model = TreesModel(SETTINGS)
    before = shipped_model._made_of(model)
    assert before == shipped_model._made_of(TreesModel(SETTINGS))
    if changed == "settings":
        model = TreesModel(replace(SETTINGS, seed=1))
    if changed == "data":
        monkeypatch.setattr(shipped_model, "digest", lambda: "of other data")
    if changed == "code":
        monkeypatch.setattr(shipped_model, "LEARNS", shipped_model.LEARNS[1:])
    if changed == "xgboost":
        monkeypatch.setattr("xgboost.__version__", "0")
    assert shipped_model._made_of(model) != before


@pytest.mark.parametrize(("mcpu", "simd_bytes"), [("nehalem", 16), ("znver3", 32), ("znver5", 64)])
def test_it_searches_for_any_x86(few_trees, mcpu, simd_bytes):
    trained = tcl.pretrained(mcpu)
    trained.check_searches()
    trained.check_target(make_target(target_of(mcpu, 2)))
    assert trained.hardware.simd_bytes == simd_bytes and trained.hardware.cores > 0 and trained.origin == "the model that comes with TCL"


def test_without_a_name_it_is_for_this_machine(few_trees, monkeypatch):
    monkeypatch.setattr(host, "why_not", lambda mcpu: None if mcpu in ("nehalem", "haswell") else "no")
    assert tcl.pretrained().hardware.simd_bytes == 32


@pytest.mark.parametrize(
    ("mcpu", "message"),
    [
        (
            "cortex-a72",
            "^the model that comes with TCL learned x86 CPUs, and cortex-a72 is aarch64; collect measurements, or tune without a model$",
        ),
        ("skylake", "^unknown CPU 'skylake'.*did you mean 'skylake-avx512'?"),
        (None, "^the model that comes with TCL learned x86 CPUs; collect measurements, or tune without a model$"),
    ],
)
def test_other_cpus_are_refused(few_trees, monkeypatch, mcpu, message):
    monkeypatch.setattr(shipped_model, "widest_cpu", lambda: None)
    with pytest.raises(UsageError, match=message):
        tcl.pretrained(mcpu)


def test_the_widest_cpu_is_one_that_runs_here(monkeypatch):
    monkeypatch.setattr(host, "why_not", lambda mcpu: None if CPUS[mcpu].machine == "x86_64" and CPUS[mcpu].simd_bytes < 64 else "no")
    monkeypatch.setattr(host, "cpu_flags", lambda: frozenset({host.AMD}))
    assert host.widest_cpu() == "znver3" and host.widest_cpu(16) == "nehalem" and host.widest_cpu(64) is None


def test_a_cpu_of_amd_is_for_amd(monkeypatch):
    """A Xeon has all features that are listed of one, and lacks others that LLVM would use."""
    every = frozenset().union(*(cpu.features for cpu in CPUS.values() if cpu.machine == "x86_64"))
    monkeypatch.setattr(host, "why_not", lambda mcpu: None if CPUS[mcpu].features <= host.cpu_flags() else "no")
    for flags, wide, narrow in (
        (every, "sapphirerapids", "haswell"),
        (every - {"amx_tile"}, "skylake-avx512", "haswell"),
        (every - {"amx_tile"} | {host.AMD}, "znver5", "znver3"),
    ):
        monkeypatch.setattr(host, "cpu_flags", lambda flags=flags: flags)
        assert (host.widest_cpu(), host.widest_cpu(32)) == (wide, narrow)
