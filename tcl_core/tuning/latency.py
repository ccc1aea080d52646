"""Times networks fairly: each system in a process of its own, in the setup that suits it best, all of them by turns.

    library   a library that ``library.export`` wrote, in TVM's runtime, with the threads that programs were measured with
    eager     PyTorch, once with threads that wait asleep and once with threads that first spin for a while: the faster counts
    compile   torch.compile, without its compile time; both ways to wait as well

On a GPU all three keep weights and inputs there, and each inference is synchronised; there is one way to wait.

In each round every system runs for a moment, in a new random order.  So a longer disturbance of the machine hits all of
them, and ratios are taken within a round.  All other processes are stopped meanwhile, with all their threads: waiting
OpenMP threads would spin on cores that are in use.  All processes are restarted after half of the rounds, since chance
placement in memory can make one process several times as slow as another of the same program.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tcl_core.errors import PlatformError
from tcl_core.evaluation.intervals import Interval
from tcl_core.files import shown
from tcl_core.network_names import is_file_name
from tcl_core.outputs import difference
from tcl_core.platforms import USABLE_CORES
from tcl_core.programs.network_files import existing, memory_and_rights
from tcl_core.programs.networks import example_inputs
from tcl_core.sandbox import Rights, command, scratch_folder

ROUNDS, STARTS = 7, 2
PYTORCH = ("eager", "compile")
SLEEPING, SPINNING = POLICIES = ("sleeping", "spinning")  # how threads of OpenMP wait
CPU = "cpu"
START_S, ROUND_S = 900.0, 300.0  # torch.compile of a large network takes minutes
LONGEST_ANSWER = 1 << 14
DRAWS = 10_000


@dataclass(frozen=True)
class Timed:
    """One system's result.

    median_ms   milliseconds of one inference: mean over its processes of the median of their rounds (``typical``)
    rounds_ms   milliseconds of one inference: median of each round
    difference  of its outputs from the reference's (``outputs.difference``)
    waiting     the faster way for its OpenMP threads to wait; "" for a library, and on a GPU
    """

    median_ms: float
    rounds_ms: tuple[float, ...]
    difference: float
    waiting: str = ""


@dataclass(frozen=True)
class Latencies:
    """Result of a comparison.

    systems    name -> result of each library, and of eager and compile where they ran
    missing    eager and compile where they did not run -> why, in words
    ratios     "LIBRARY/eager" and "LIBRARY/compile" -> ``ratio``; below 1 the library is faster
    reference  the system whose output the others are compared with: eager, else the first library
    """

    systems: Mapping[str, Timed]
    missing: Mapping[str, str]
    ratios: Mapping[str, Interval]
    reference: str

    def ms(self, system: str) -> float | None:
        return self.systems[system].median_ms if system in self.systems else None


def compare(
    network: str,
    libraries: Mapping[str, Path],
    threads: int,
    pin: bool,
    rounds: int = ROUNDS,
    inputs: Sequence[np.ndarray] | None = None,
    device: str = CPU,
) -> Latencies:
    """Time ``libraries`` (name -> path) of a network beside PyTorch, all on ``threads`` threads and the same inputs.

    ``inputs`` None: the network's own example inputs.  A network file is run by a process of few rights, which may start no
    compiler: for it torch.compile is missing, and on a ``device`` other than the CPU eager too.
    Raises UsageError for a bad network, PlatformError for a library that does not run.
    """
    inputs = example_inputs(network) if inputs is None else inputs
    missing = {kind: why for kind in PYTORCH if (why := _why_not(kind, network, device))}
    rounds_ms: dict[Key, list[float]] = {}
    outputs: dict[Key, list[np.ndarray]] = {}
    place = _Place(threads, pin, device)
    with scratch_folder("compare") as scratch:
        for start in range(STARTS):
            if share := len(range(start, rounds, STARTS)):
                with ExitStack() as stack:
                    systems = {(name, ""): stack.enter_context(_library(path, place, inputs)) for name, path in libraries.items()}
                    systems |= _both_of_pytorch(stack, network, place, scratch, inputs, missing)
                    for key, found_ms in _by_turns(systems, share, missing, start).items():
                        rounds_ms.setdefault(key, []).extend(found_ms)
                    outputs |= {key: system.outputs for key, system in systems.items()}
    return _summed_up({key: found_ms for key, found_ms in rounds_ms.items() if key[0] not in missing}, outputs, missing)


@contextmanager
def running(library: Path, threads: int, pin: bool, inputs: Sequence[np.ndarray], device: str = CPU) -> Iterator[Process]:
    """Run one library in a process of its own.  Raises PlatformError where it does not run."""
    with _library(library, _Place(threads, pin, device), inputs) as process:
        yield process


def typical(rounds: Sequence[float]) -> float:
    """Mean over the processes of the median of their rounds, so that each process counts alike, the slower one too."""
    return float(np.mean([np.median(each) for each in _by_process(rounds)]))


def ratio(ours_ms: Sequence[float], theirs_ms: Sequence[float], seed: int = 0) -> Interval:
    """Geometric mean over the processes of the median of their rounds' ratios, and its 95 % bootstrap interval.

    The bootstrap draws the rounds of each process anew; it does not tell what other processes would give.
    """
    draw, medians, drawn = np.random.default_rng(seed), [], []
    for each in _by_process(np.log(np.asarray(ours_ms) / np.asarray(theirs_ms))):
        medians.append(np.median(each))
        drawn.append(np.median(each[draw.integers(0, len(each), (DRAWS, len(each)))], axis=1))
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return Interval(*np.exp([np.mean(medians), low, high]).tolist())


def _by_process(rounds: Sequence[float] | np.ndarray) -> list[np.ndarray]:
    """Split rounds by the process that ran them, as ``compare`` shares them out."""
    shares = [len(range(start, len(rounds), STARTS)) for start in range(STARTS)]
    return [each for each in np.split(np.asarray(rounds), np.cumsum(shares)[:-1]) if len(each)]


Key = tuple[str, str]  # a system's name, and how its threads wait


class _Place(NamedTuple):
    """Where a process runs its network.

    device  its name for TVM and PyTorch
    """

    threads: int
    pin: bool
    device: str

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which OpenMP threads may wait there."""
        return POLICIES if self.device == CPU else ("",)


def _both_of_pytorch(
    stack: ExitStack, network: str, place: _Place, scratch: str, inputs: Sequence[np.ndarray], missing: dict[str, str]
) -> dict[Key, Process]:
    """Start eager and compile unless ``missing``, each with all ways to wait; one that fails is added to ``missing``.

    Eager and compile start side by side: each keeps one thread busy, and nothing is timed yet.
    """
    found: dict[Key, Process] = {}
    for way in place.ways:
        for kind in PYTORCH:
            if kind not in missing:
                found[kind, way] = stack.enter_context(_pytorch(kind, way, network, place, scratch, inputs))
        for kind in PYTORCH:
            try:
                if kind not in missing:
                    found[kind, way].wait_until_ready()
            except ProcessFailed as failed:
                missing[kind] = f"it {failed}"
    return {key: process for key, process in found.items() if key[0] not in missing}


def _by_turns(systems: Mapping[Key, Process], rounds: int, missing: dict[str, str], seed: int = 0) -> dict[Key, list[float]]:
    """Milliseconds of each round.  Adds eager or compile to ``missing`` if it fails; raises PlatformError for a library that fails."""
    order, found = np.random.default_rng(seed), {key: [] for key in systems}
    for _ in range(rounds):
        for place in order.permutation(len(systems)):
            name, _ = key = list(systems)[place]
            try:
                if name not in missing:
                    found[key].append(systems[key].round_ms())
            except ProcessFailed as failed:
                if name not in PYTORCH:
                    raise PlatformError(f"{name} ran first and then {failed}; nothing was compared, run again") from None
                missing[name] = f"it ran first and then {failed}"
    return found


def _summed_up(
    rounds_ms: Mapping[Key, Sequence[float]], outputs: Mapping[Key, Sequence[np.ndarray]], missing: Mapping[str, str]
) -> Latencies:
    best: dict[str, Key] = {}  # each system's fastest way to wait
    for key in sorted(rounds_ms, key=lambda key: typical(rounds_ms[key])):
        best.setdefault(key[0], key)
    names = list(dict.fromkeys(name for name, _ in rounds_ms))  # as they were given
    reference = "eager" if "eager" in best else names[0]
    expected = outputs[best[reference]]
    systems = {
        name: Timed(typical(rounds_ms[key]), tuple(rounds_ms[key]), difference(outputs[key], expected), key[1])
        for name, key in ((name, best[name]) for name in names)
    }
    ratios = {
        f"{name}/{kind}": ratio(systems[name].rounds_ms, systems[kind].rounds_ms)
        for kind in PYTORCH if kind in systems
        for name in names if name not in PYTORCH
    }  # fmt: skip
    return Latencies(systems, dict(missing), ratios, reference)


# --- processes ---


class ProcessFailed(Exception):
    """A process failed; the message says how, as the end of a sentence."""


class Process:
    """A ``timed_process``, stopped except while it runs a round.

    outputs   its network's outputs, once it is ready
    first_ms  milliseconds of its first run
    """

    outputs: list[np.ndarray]
    first_ms: float

    def __init__(self, order: Mapping[str, Any], rights: Rights, inputs: Sequence[np.ndarray], environment: Mapping[str, str]) -> None:
        self._log, self._written, self._heard, self._last_words = tempfile.TemporaryFile(), tempfile.TemporaryFile(), b"", ""
        with tempfile.TemporaryFile() as given:
            np.savez(given, **{f"input_{number}": array for number, array in enumerate(inputs)})
            given.seek(0)
            files = {"inputs": given.fileno(), "outputs": self._written.fileno()}
            cores = sorted(USABLE_CORES)  # OpenMP may have bound this process to one core since it started
            self._process = subprocess.Popen(
                [*command("tcl_core.tuning.timed_process", rights), json.dumps({**order, **files, "cores": cores})],
                pass_fds=files.values(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                cwd=Path(__file__).parents[2], env=environment, process_group=0,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait until it is warm, read its ``outputs``, and stop it.  Raises ProcessFailed."""
        try:
            self.first_ms = self._milliseconds(START_S, "ready")
            self._written.seek(0)
            self.outputs = _read_arrays(self._written)
        except ProcessFailed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def round_ms(self) -> float:
        """Let it run one round; median milliseconds of an inference.  Raises ProcessFailed."""
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            return self._milliseconds(ROUND_S, "ms")
        except (ValueError, BrokenPipeError):  # ValueError: it is closed already
            raise ProcessFailed(self._death()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _milliseconds(self, timeout_s: float, word: str) -> float:
        ms = self._answer(timeout_s, word)
        if type(ms) is not float or not 0 < ms < math.inf:
            raise ProcessFailed("gave an answer that is none")
        return ms

    def _answer(self, timeout_s: float, word: str) -> Any:
        end = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                raise ProcessFailed(f"gave no answer within {timeout_s:.0f} s")
            heard = os.read(self._process.stdout.fileno(), LONGEST_ANSWER)
            self._heard += heard
            if not heard or len(self._heard) > LONGEST_ANSWER:
                raise ProcessFailed(self._death())
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            said = json.loads(line)
            if "refused" in said:
                raise ProcessFailed(f"was refused ({shown(said['refused'], 500)})")
            return said[word]
        except (ValueError, TypeError, KeyError):
            raise ProcessFailed("gave an answer that is none") from None

    def _death(self) -> str:
        self.close()
        return f"ended with {self._process.returncode} ({self._last_words})"

    def _signal(self, number: int) -> None:
        """Send a signal to its process group, unless it has been waited for: its number may be another's then."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        if self._log.closed:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        with suppress(BrokenPipeError):  # a request that it did not read
            self._process.stdin.close()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._last_words = shown(lines[-1]) if lines else "no word"
        self._log.close()
        self._written.close()


def _read_arrays(file: Any) -> list[np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as given:
            found = [given[f"output_{number}"] for number in range(len(given.files))]
    except Exception:  # a network's code may have written anything to the file
        found = []
    if not found or any(array.dtype.kind not in "biuf" for array in found):
        raise ProcessFailed("gave an output that is none")
    return found


@contextmanager
def _started(*given: Any) -> Iterator[Process]:
    process = Process(*given)
    try:
        yield process
    finally:
        process.close()


@contextmanager
def _library(path: Path, place: _Place, inputs: Sequence[np.ndarray]) -> Iterator[Process]:
    path = Path(os.path.realpath(path))
    order = {"kind": "library", "network": str(path), "memory_bytes": 0, **place._asdict()}
    rights = Rights(readable=(str(path),), outside=place.device != CPU)
    with ExitStack() as stack:
        try:
            process = stack.enter_context(_started(order, rights, inputs, os.environ))
            process.wait_until_ready()
            yield process
        except ProcessFailed as failed:
            raise PlatformError(f"the library {shown(path)} {failed}; build it again") from None


@contextmanager
def _pytorch(kind: str, waiting: str, network: str, place: _Place, scratch: str, inputs: Sequence[np.ndarray]) -> Iterator[Process]:
    memory_bytes, rights = 0, Rights(scratch, outside=True)
    if is_file_name(network):
        path = existing(network)
        network, (memory_bytes, rights) = str(path), memory_and_rights(path, scratch)
    order = {"kind": kind, "network": network, "memory_bytes": memory_bytes, **place._asdict(), "pin": False}
    environment = os.environ | dict.fromkeys(("TMPDIR", "HOME", "TORCHINDUCTOR_CACHE_DIR"), scratch)
    environment |= {"OMP_NUM_THREADS": str(place.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment.pop("OMP_WAIT_POLICY", None)  # OpenMP's default is to spin for a while, then to sleep
    with _started(order, rights, inputs, environment | ({"OMP_WAIT_POLICY": "PASSIVE"} if waiting == SLEEPING else {})) as process:
        yield process


def _why_not(kind: str, network: str, device: str) -> str:
    """Why PyTorch cannot run a network in this way; "" if it can."""
    if network.endswith(".onnx"):
        return "an ONNX file is no PyTorch network"
    if kind == "compile" and is_file_name(network):
        return "a network file is run by a process that may start no compiler"
    if device != CPU and is_file_name(network):
        return "a network file is run by a process that may use no GPU"
    return ""
