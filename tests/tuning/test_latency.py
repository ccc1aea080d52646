"""Systems side by side, each in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import onnx_model

from tcl_core.compat import make_target, quiet_compiler
from tcl_core.errors import PlatformError, UsageError
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.networks import import_network, load_relax
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.sandbox import barriers
from tcl_core.tuning import latency, timed_process
from tcl_core.tuning.latency import compare, ratio
from tcl_core.tuning.library import export


@pytest.fixture(scope="module")
def imported(tiny_network):
    with quiet_compiler():
        return import_network(tiny_network)


@pytest.fixture(scope="module")
def library(imported, tmp_path_factory) -> Path:
    """The tiny network, untuned."""
    path, target = tmp_path_factory.mktemp("library") / "tiny.so", make_target(EXTRACTION_TARGET)
    with quiet_compiler():
        module = fuse(imported.module, target, PREPARED)
    export(module, target, path)
    return path


@pytest.fixture
def inputs(imported):
    return imported.inputs


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_libraries_beside_pytorch(tiny_network, library, monkeypatch):
    """Every system has a median for each round and computes what PyTorch does; a stranger's file is never compiled."""
    monkeypatch.setattr(latency, "STARTS", 1)
    before = children()
    found = compare(tiny_network, {"one": library, "other": library}, threads=1, pin=False, rounds=3)
    assert set(found.systems) == {"one", "other", "eager"} and found.reference == "eager"
    assert found.missing == {"compile": "a network file is run by a process that may start no compiler"}
    for timed in found.systems.values():
        assert len(timed.rounds_ms) == 3 and min(timed.rounds_ms) > 0 and timed.difference < 1e-5
        assert timed.median_ms == sorted(timed.rounds_ms)[1]
    assert found.systems["eager"].waiting in latency.POLICIES and found.systems["one"].waiting == ""
    assert set(found.ratios) == {"one/eager", "other/eager"}
    assert found.ms("one") == found.systems["one"].median_ms and found.ms("compile") is None
    assert children() == before


def count_starts(monkeypatch) -> list[str]:
    started, start = [], latency.Process.__init__

    def counted(self, order, *rest):
        started.append(order["kind"])
        start(self, order, *rest)

    monkeypatch.setattr(latency.Process, "__init__", counted)
    return started


class StandIn:
    """In the place of a process: says a time for each start, or fails before it is ready."""

    outputs = [np.ones(3, np.float32)]

    def __init__(self, ms: float, fails: bool = False) -> None:
        self.ms, self.fails = ms, fails

    def wait_until_ready(self) -> None:
        if self.fails:
            raise latency.ProcessFailed("was refused (no working C++ compiler)")

    def round_ms(self) -> float:
        return self.ms


@pytest.mark.parametrize("failing", [None, ("compile", "sleeping"), ("compile", "spinning")])
def test_a_compiler_that_fails_is_missing_with_its_reason(monkeypatch, tmp_path, failing):
    """However far it came: at its first start or at a later one, with one way to wait or with both."""
    starts = []

    @contextmanager
    def library(*_):
        yield StandIn(2.0)

    @contextmanager
    def pytorch(kind, way, *_):
        starts.append((kind, way))
        fails = (kind, way) == failing and starts.count(failing) == 2
        yield StandIn({"eager": 4.0, "compile": 1.0}[kind] + (way == "sleeping"), fails)

    monkeypatch.setattr(latency, "_library", library)
    monkeypatch.setattr(latency, "_pytorch", pytorch)
    found = compare("resnet-18", {"tuned": tmp_path}, 1, False, rounds=5, inputs=[])
    assert found.ms("eager") == 4.0 and found.systems["eager"].waiting == "spinning" and found.ratios["tuned/eager"].value == 0.5
    if failing:
        assert found.missing == {"compile": "it was refused (no working C++ compiler)"} and "tuned/compile" not in found.ratios
    else:
        assert found.missing == {} and found.ms("compile") == 1.0 and len(found.systems["compile"].rounds_ms) == 5


def test_an_onnx_file_has_no_pytorch(tmp_path, monkeypatch):
    network = onnx_model(tmp_path / "net.onnx", [("Softmax", ["x"], ["y"])], {"x": (4, 16)}, {"y": (4, 16)})
    target, path = make_target(EXTRACTION_TARGET), tmp_path / "net.so"
    with quiet_compiler():
        export(fuse(load_relax(network), target, PREPARED), target, path)
    started = count_starts(monkeypatch)
    found = compare(network, {"first": path}, threads=1, pin=True, rounds=3)
    assert len(started) == 2 and len(found.systems["first"].rounds_ms) == 3  # all processes anew after half of the rounds
    why = "an ONNX file is no PyTorch network"
    assert found.missing == {"eager": why, "compile": why} and found.ratios == {}
    assert found.reference == "first" and found.systems["first"].difference == 0.0


def test_what_runs_on_a_gpu(tmp_path, monkeypatch):
    """Every process is told so and may use it; threads of OpenMP play no part; a stranger's file gets no GPU."""
    orders, rights = [], []

    class Told:
        outputs = [np.zeros(1)]

        def __init__(self, order, granted, inputs, environment):
            orders.append(order)
            rights.append((order["kind"], granted.outside))

        def wait_until_ready(self):
            pass

        def round_ms(self):
            return 1.0

        def close(self):
            pass

    monkeypatch.setattr(latency, "Process", Told)
    monkeypatch.setattr(latency, "STARTS", 1)
    found = compare("resnet-18", {"tuned": tmp_path}, 1, False, rounds=3, inputs=[], device="cuda")
    assert [order["device"] for order in orders] == ["cuda"] * 3 and rights == [("library", True), ("eager", True), ("compile", True)]
    assert found.systems["eager"].waiting == "" and found.ratios["tuned/compile"].value == 1.0
    (tmp_path / "net.pt2").touch()
    found = compare(str(tmp_path / "net.pt2"), {"tuned": tmp_path}, 1, False, rounds=3, inputs=[], device="cuda")
    assert found.missing["eager"] == "a network file is run by a process that may use no GPU" and set(found.systems) == {"tuned"}
    compare("resnet-18", {"tuned": tmp_path}, 1, False, rounds=3, inputs=[])
    assert [each for each in rights[-5:] if each[0] == "library"] == [("library", False)] and orders[-1]["device"] == "cpu"


def test_who_has_no_turn_is_stopped(inputs, library):
    """So that its waiting threads spin on nobody's core; it goes on when it is asked."""
    with latency.running(library, 2, False, inputs) as process:
        (child,) = (psutil.Process(pid) for pid in children() if str(library) in " ".join(psutil.Process(pid).cmdline()))
        assert [found.shape for found in process.outputs] == [(1, 10)]
        assert wait_for(lambda: child.status() == psutil.STATUS_STOPPED)
        assert process.round_ms() > 0
        assert wait_for(lambda: child.status() == psutil.STATUS_STOPPED)
    assert not child.is_running()


def wait_for(condition) -> bool:
    import time

    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_library_that_does_not_run_is_a_sentence(tmp_path, tiny_network, inputs, content):
    path, before = tmp_path / "bad.so", children()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PlatformError, match=r"^the library .*bad.so was refused \(.*\); build it again$"):
        compare(tiny_network, {"bad": path}, threads=1, pin=False, inputs=inputs)
    assert children() == before


def test_a_process_that_dies_in_a_round_is_a_sentence(inputs, library, monkeypatch):
    asked = latency.Process.round_ms

    def killed(self):
        os.kill(self._process.pid, signal.SIGKILL)
        return asked(self)

    monkeypatch.setattr(latency.Process, "round_ms", killed)
    with pytest.raises(PlatformError, match=r"^one ran first and then ended with -9 \(no word\); nothing was compared"):
        latency._by_turns({("one", ""): started(library, inputs)}, 1, {})


def test_a_way_of_pytorch_that_dies_in_a_round_is_missing_and_the_others_are_timed(inputs, library, monkeypatch):
    """A library that was tuned for hours is not thrown away for it."""
    asked = latency.Process.round_ms
    systems = {("tuned", ""): started(library, inputs), ("compile", "sleeping"): started(library, inputs)}
    systems["compile", "spinning"] = systems["compile", "sleeping"]

    def killed(self):
        if self is systems["compile", "sleeping"]:
            os.kill(self._process.pid, signal.SIGKILL)
        return asked(self)

    monkeypatch.setattr(latency.Process, "round_ms", killed)
    missing: dict[str, str] = {}
    found = latency._by_turns(systems, 3, missing)
    assert missing == {"compile": "it ran first and then ended with -9 (no word)"} and len(found["tuned", ""]) == 3
    systems["tuned", ""].close()


@pytest.mark.parametrize("said", ["NaN", "0", "-1.5", "Infinity", '"soon"'])
def test_no_time_of_a_round(said):
    process = latency.Process.__new__(latency.Process)
    process._signal, process._answer = lambda number: None, lambda timeout_s, word: json.loads(said)
    process._process = type("Child", (), {"stdin": open(os.devnull, "wb")})
    process._death = lambda: "ended"
    with pytest.raises(latency.ProcessFailed, match="^gave an answer that is none$"):
        process.round_ms()
    process._process.stdin.close()


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([1j]), np.array([b"x"])])
def test_no_output_of_a_network(tmp_path, array):
    """Whoever made the network may have written it."""
    np.save(tmp_path / "array.npy", np.ones(2))
    np.savez(tmp_path / "unnamed.npz", np.ones(2))
    np.savez(tmp_path / "kind.npz", output_0=np.ones(2), output_1=array)
    for name in ("array.npy", "unnamed.npz", "kind.npz"):
        with open(tmp_path / name, "rb") as file, pytest.raises(latency.ProcessFailed, match="gave an output that is none"):
            latency._read_arrays(file)
    np.savez(tmp_path / "both.npz", output_0=np.ones(2), output_1=np.zeros(3, np.int64))
    with open(tmp_path / "both.npz", "rb") as file:
        assert [found.shape for found in latency._read_arrays(file)] == [(2,), (3,)]


def test_a_process_that_hangs_is_given_up(inputs, library, monkeypatch):
    monkeypatch.setattr(latency, "ROUND_S", 0.2)
    process = started(library, inputs)
    monkeypatch.setattr(process, "_signal", lambda number: None)  # it stays stopped
    with pytest.raises(latency.ProcessFailed, match="gave no answer within 0 s"):
        process.round_ms()
    monkeypatch.undo()
    process.close()


def started(library: Path, inputs: list) -> latency.Process:
    order = {"kind": "library", "network": str(library), "threads": 1, "pin": False, "device": "cpu", "memory_bytes": 0}
    process = latency.Process(order, latency.Rights(readable=(str(library),)), inputs, os.environ)
    process.wait_until_ready()
    return process


@pytest.mark.skipif("files" not in barriers(), reason="the barrier 'files' cannot be had here")
def test_a_library_that_writes_files_cannot(inputs, tmp_path):
    """A library's own code runs as soon as it is loaded."""
    library, written = tmp_path / "evil.so", tmp_path / "written"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o777)  # nothing else keeps it from writing
    source = f'#include <fstream>\nstruct Runs {{ Runs() {{ std::ofstream("{written}") << "x"; }} }} runs;'
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input=source, text=True, check=True, timeout=60)
    with pytest.raises(latency.ProcessFailed):
        started(library, inputs)
    assert not written.exists()
    ctypes.CDLL(str(library))
    assert written.read_text() == "x"


NONE = "^gave an answer that is none$"


@pytest.mark.parametrize("line, why", [(b"no json\n", NONE), (b"[]\n", NONE), (b'{"else": 1}\n', NONE), (b"x" * 20_000, "^said too much$")])
def test_an_answer_that_is_none(line, why):
    """Whoever made the network may have written it."""
    process = latency.Process.__new__(latency.Process)
    process._heard = line if line.endswith(b"\n") else b""
    reader, writer = os.pipe()
    os.write(writer, line)
    process._process = type("Child", (), {"stdout": os.fdopen(reader, "rb"), "returncode": 0, "pid": 0})
    process._death = lambda: "said too much"
    with pytest.raises(latency.ProcessFailed, match=why):
        process._answer(5.0, "ms")
    os.close(writer)


def test_an_unknown_network_is_the_users_to_mend(library):
    with pytest.raises(UsageError, match="unknown network 'resnet-19'"):
        compare("resnet-19", {"one": library}, threads=1, pin=False)


def test_ratios_are_taken_within_a_round():
    """One side is twice as fast in every round, however the machine's speed changes between them."""
    found = ratio([1.0, 5.0, 2.0, 8.0], [2.0, 10.0, 4.0, 16.0])
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    spread = ratio([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 2.0])
    assert (spread.low, spread.value, spread.high) == pytest.approx((0.5, 0.5**0.75, 0.5**0.5))


def test_both_processes_count_alike():
    """Of seven rounds the first has four: one that is slower throughout would otherwise decide nothing, or all."""
    theirs = [4.0, 4.0, 4.0, 9.0, 1.0, 1.0, 1.0]
    assert latency.typical(theirs) == 2.5 and latency.typical([3.0]) == 3.0
    assert ratio([1.0] * 7, theirs).value == pytest.approx(0.5)
    found = latency._summed_up(
        {("tuned", ""): [1.0] * 7, ("eager", "sleeping"): theirs}, {("tuned", ""): [], ("eager", "sleeping"): []}, {}
    )
    assert found.ms("eager") == 2.5


def test_the_faster_way_to_wait_counts():
    rounds_ms = {("tuned", ""): [3.0, 3.0], ("eager", "sleeping"): [9.0, 9.0], ("eager", "spinning"): [6.0, 6.0]}
    outputs = {key: [np.ones(3, np.float32)] for key in rounds_ms}
    outputs[("tuned", "")] = [np.array([1.0, 1.0, 1.5], np.float32)]
    found = latency._summed_up(rounds_ms, outputs, {"compile": "it failed"})
    assert found.systems["eager"].waiting == "spinning" and found.ms("eager") == 6.0
    assert found.ratios["tuned/eager"].value == 0.5 and found.systems["tuned"].difference == 0.5


@pytest.mark.parametrize(("seconds", "runs"), [(4.0, 1), (1.0, 3), (0.02, 16), (0.2, 4)])
def test_slow_and_fast_networks_are_timed_by_one_rule(monkeypatch, seconds, runs):
    clock, calls = [0.0], []
    monkeypatch.setattr(timed_process.time, "perf_counter", lambda: clock[0])

    def run():
        calls.append(1)
        clock[0] += seconds

    assert timed_process.round_ms(run) == pytest.approx(seconds * 1e3) and len(calls) == runs
