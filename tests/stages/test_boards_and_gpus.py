"""Boards and GPUs as platforms: how they are measured, what hardware models see, and what `tcl platforms` shows."""

from __future__ import annotations

import json

import pytest

from tcl_core import gpu, store
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.gpu import Gpu, GpuHardware
from tcl_core.measure.job import Tracker
from tcl_core.measure.tracker import Listed
from tcl_core.stages import collecting, listing
from tcl_core.stages.collecting import setup_of
from tcl_core.platforms import read_saved_hardware
from tcl_core.stages.machine import bandwidth_here
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.stages import tiny_project
from tests.stages.tiny_project import RECORDS, write_params

here, networks, pool = tiny_project.here, tiny_project.networks, tiny_project.pool


# --- devices elsewhere ---

BOARD = {"kind": "rpc", "tracker": "10.0.0.2:9190", "key": "pi4", "mcpu": "cortex-a72", "threads": 4}
TOLD = {"host": "rpc pi4: Cortex-A72 x4 1234abcd", "hardware": {"cores": 4.0, "threads": 3.0, "l2_kib": 1024.0}}


@pytest.fixture
def board(pool, monkeypatch):
    """The first platform is a board, which tells of itself what stands in ``board``."""
    write_params({"platforms": {"first": BOARD | {"hardware": {"memory_gib": 4}}, "second": {"mcpu": "haswell"}}})
    board, asked = {"told": TOLD}, []

    class Describing:
        def __init__(self, setup, workers):
            asked.append((setup, workers))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def describe(self):
            if isinstance(board["told"], Exception):
                raise board["told"]
            return board["told"]

    monkeypatch.setattr(collecting, "Runner", Describing)
    return board


def test_a_board_is_measured_through_its_tracker(board, runners):
    """Its records bear the board's host, and models see the board's hardware: told, else given, else of its CPU."""
    tcl("collect", "-p", "first")
    (runner,) = runners
    assert runner.setup.tracker == Tracker("10.0.0.2", 9190, "pi4", host_told=TOLD["host"])
    assert runner.setup.target == {"kind": "llvm", "mcpu": "cortex-a72", "num-cores": 4, "mtriple": "aarch64-linux-gnu"}
    assert runner.setup.protocol.threads == 4
    assert {r.host for r in store.read_records(RECORDS)} == {TOLD["host"]}
    hardware = read_saved_hardware(RECORDS)
    assert (hardware.cores, hardware.threads, hardware.l2_kib) == (4, 4, 1024)
    assert (hardware.memory_gib, hardware.simd_bytes, hardware.bandwidth_gbs) == (4, 16, 0)
    tcl("collect", "-p", "second")
    assert runners[-1].setup.tracker is None


def test_a_board_that_is_another_one_today_is_not_mixed_in(board, runners):
    tcl("collect", "-p", "first")
    board["told"] = TOLD | {"host": "rpc pi4: Cortex-A76 x4 9999ffff"}
    with pytest.raises(DataError, match="holds measurements of another host .*1234abcd; this one is .*9999ffff"):
        tcl("collect", "-p", "first")


def test_a_board_that_is_away_is_an_error_and_what_was_measured_stays(board, runners):
    """No reason to skip its platform and go on without it."""
    tcl("collect", "-p", "first")
    before = store.data_digest(RECORDS)
    board["told"] = PlatformError("the RPC tracker at 10.0.0.2:9190 has had no device")
    with pytest.raises(PlatformError, match="^the RPC tracker at 10.0.0.2:9190 has had no device$"):
        tcl("collect", "-p", "first")
    assert store.data_digest(RECORDS) == before


def test_a_board_of_an_unknown_cpu(board, runners):
    write_params({"platforms": {"first": BOARD | {"mcpu": "cortex-a7"}, "second": {"mcpu": "haswell"}}})
    with pytest.raises(UsageError, match="^unknown CPU 'cortex-a7' in platforms of params.yaml; did you mean 'cortex-a72'"):
        tcl("collect", "-p", "first")


# --- a GPU ---


A100 = dict.fromkeys(gpu.ATTRIBUTES, 0) | gpu.POOL_LIMITS | {"multiprocessors": 108, "clock_khz": 1410000, "major": 8}
ONE_GPU = {
    "platforms": {"gpu": {"kind": "cuda", "hardware": {"int8_tops": 624}}},
    "chain": {"first": "gpu", "then": {}},
    "candidates.design_space": "cuda",
    "candidates.programs_per_task": 6,
    "candidates.held_out_programs_per_task": 3,
}


@pytest.fixture
def one_gpu(here, networks, monkeypatch):
    """The only platform is this machine's GPU, an A100."""
    monkeypatch.setattr(gpu, "read_gpu", lambda: Gpu("NVIDIA A100", 80 << 30, A100))
    monkeypatch.setattr("tcl_core.platforms.cuda.read_gpu", gpu.read_gpu)
    monkeypatch.setattr(gpu.shutil, "which", lambda command: command)
    monkeypatch.setattr(gpu, "_can_load", lambda library: True)
    write_params(ONE_GPU)


def test_a_gpu_has_a_pool_of_its_own_and_its_own_hardware(one_gpu, runners):
    tcl("tasks")
    tcl("candidates")
    assert {"threadIdx.x"} == {
        axis for row in store.read_table(Workspace().pool / "train" / "sketches.parquet", "sketches")
        for axis in ("threadIdx.x", "meta_schedule.parallel") if axis in row["trace_json"]
    }  # fmt: skip
    assert tcl("collect").startswith("gpu: 6 of 12 programs")
    (runner,) = runners
    assert runner.setup.target == {"kind": "cuda", "arch": "sm_80", **gpu.POOL_LIMITS}
    assert (runner.setup.limits.memory_bytes, runner.setup.tracker) == (0, None)
    folder = Workspace().records_folder("gpu")
    assert {r.host for r in store.read_records(folder)} == {gpu.gpu_fingerprint()}
    hardware = read_saved_hardware(folder)
    assert isinstance(hardware, GpuHardware) and (hardware.cuda_cores, hardware.int8_tops) == (6912, 624)
    assert tcl("holdout", "-p", "gpu") == "3 held-out programs"
    assert len(Workspace().samples("gpu")) == 6


def test_a_machine_without_a_gpu(one_gpu, runners, monkeypatch):
    monkeypatch.setattr(gpu, "cuda_compiler", lambda: "")
    said = "can run none of the platforms of params.yaml .there is neither nvcc on the PATH.*; programs of this design space need a GPU"
    with pytest.raises(PlatformError, match=said):
        tcl("collect", "-p", "gpu")


def test_a_gpus_caches_are_not_flushed(one_gpu, runners):
    write_params(ONE_GPU | {"measure.flush_cache": True})
    with pytest.raises(UsageError, match="^measure.flush_cache empties a CPU's caches, and gpu is a GPU; set it to false"):
        tcl("collect", "-p", "gpu")


def test_a_gpus_weights_are_not_cold(one_gpu, runners):
    write_params(ONE_GPU | {"measure.cold_weights": True})
    assert not setup_of(Workspace(), "gpu").cold_weights


# --- what there is ---


def test_platforms_and_their_state(here, monkeypatch):
    write_params({"platforms": {"first": {"mcpu": "nehalem"}, "second": BOARD}})
    monkeypatch.setattr(listing, "list_devices", lambda host, port: {"pi4": Listed(3, 1, 0)})
    assert "bandwidth_gbs not measured yet" in tcl("platforms") and "bandwidth_gbs 12.5" not in tcl("platforms")
    bandwidth_here(Workspace())
    header, first, second, _, known, unknown, _, confined = tcl("platforms").splitlines()
    assert header.split() == ["platform", "hardware", "from", "status"]
    assert first.split() == ["first", "nehalem", "-", "runs", "here"]
    assert second == f"{'second':14s} {'cortex-a72':16s} {'first':14s} 3 devices of key 'pi4' at 10.0.0.2:9190, 1 free"
    assert known.startswith("hardware of first: cores ") and "bandwidth_gbs 12.5" in known
    assert confined.startswith("what cannot be trusted runs ")
    told = json.loads(tcl("platforms", "--json"))
    assert [(row["platform"], row["from"], row["runs_here"]) for row in told["platforms"]] == [
        ("first", None, True),
        ("second", "first", False),
    ]
    assert told["hardware"]["platform"] == "first" and told["hardware"]["vector"]["bandwidth_gbs"] == 12.5

    def away(host, port):
        raise PlatformError("no RPC tracker answers")

    monkeypatch.setattr(listing, "list_devices", away)
    assert tcl("platforms").splitlines()[2].endswith(" no RPC tracker answers")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["user", "files", "network", "programs"], "confined in user, files, network, programs"),
        (["network", "programs"], "confined in network, programs; not in user, files (docs/security.md)"),
        ([], "with all rights of this user (docs/security.md)"),
    ],
)
def test_what_confines_programs_here(monkeypatch, held, said):
    monkeypatch.setattr(listing.sandbox, "barriers", lambda: held)
    assert listing._confined_text(listing._confinement()) == said


def test_a_gpu_and_its_state(one_gpu, monkeypatch):
    lines = tcl("platforms").splitlines()
    assert lines[1] == f"{'gpu':14s} {'NVIDIA A100':16s} {'-':14s} runs here"
    assert lines[3].startswith("hardware of gpu: cuda_cores 6912, boost_ghz 1.41, memory_gib 80, ")
    monkeypatch.setattr(gpu, "cuda_compiler", lambda: "")
    assert tcl("platforms").splitlines()[1].startswith(f"{'gpu':14s} {'GPU':16s} {'-':14s} there is neither nvcc")
