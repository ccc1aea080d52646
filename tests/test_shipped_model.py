"""The model that comes with TCL, with a tenth of its trees."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tcl_core as tcl
from tcl_core import shipped_model
from tcl_core.compat import make_target
from tcl_core.errors import UsageError
from tcl_core.models import catalogue
from tcl_core.models.trees import SETTINGS
from tcl_core.platforms import CPUS, host, target_of


@pytest.fixture(scope="module")
def few_trees():
    """Trees of all that comes with TCL, too few to be good."""
    fitted = catalogue.create("trees", replace(SETTINGS, epochs=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "create", lambda name: fitted)
        shipped_model._learned.cache_clear()
        yield shipped_model._learned()
        shipped_model._learned.cache_clear()


def test_it_ranks_networks_that_it_never_saw(few_trees):
    data = tcl.datasets.prepared()
    for platform in data.platforms:
        case = data.case(platform)
        right = tcl.figures(tcl.pretrained().predict(case.test), case.test)
        assert len(case.test) == 352 and right["pairs"] > 0.7 and right["u16"] > 0.7


def test_it_is_grown_once(few_trees):
    assert tcl.pretrained("haswell").model is tcl.pretrained("nehalem").model is few_trees


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
    assert host.widest_cpu() == "znver3" and host.widest_cpu(16) == "nehalem" and host.widest_cpu(64) is None
