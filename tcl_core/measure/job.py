"""A measurement's inputs and results: plain data that crosses a process boundary."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tcl_core.platforms import Kind, kind_measured
from tcl_core.programs.weights import is_large_json


@dataclass(frozen=True)
class Protocol:
    """How a program is timed; stored with every record, since a latency means nothing without it.

    repeats            minimum number of timed repeats, in turns with other programs; the latency is the median of their means
    max_repeats        maximum number, taken only while their spread exceeds ``max_spread``
    max_spread         interquartile range / median at or below which the repeats are enough
    min_repeat_ms      a repeat makes as many runs as last this long together
    max_number         maximum number of runs per repeat
    enough_s           no further repeat once the timed runs have lasted this long
    warmup             untimed runs before each repeat, at least one
    threads            threads of TVM's runtime
    pin_threads        bind each of them to a core
    early_stop_factor  a program whose first two runs are this many times slower than its task's best is not repeated
    flush_cache        evict the caches before each run; a repeat is then a single run
    """

    repeats: int = 3
    max_repeats: int = 3
    max_spread: float = 0.05
    min_repeat_ms: float = 10.0
    max_number: int = 200
    enough_s: float = 1.0
    warmup: int = 1
    threads: int = 1
    pin_threads: bool = True
    early_stop_factor: float = 10.0
    flush_cache: bool = False


@dataclass(frozen=True)
class Limits:
    """What a candidate program may use before it is stopped: seconds per step and bytes of address space (0: no limit)."""

    build_s: float = 20.0
    run_s: float = 10.0
    memory_bytes: int = 16 << 30


@dataclass(frozen=True)
class Job:
    """One program to build, run and time.

    task_key     names the task; consecutive jobs of one task share its inputs
    module_json  the task's module as TVM's JSON
    trace_json   the sketch, as ``sketches.trace_to_json`` wrote it; None runs the module as it is
    decisions    the sketch's decision vector
    best_s       the fastest latency of the task known so far, seconds
    check        compare the output with that of the untuned module on the same inputs
    cold         evict the weights (``weights.weight_places``) from the caches before each timed run: in a network others have been read
                 in between.  With ``Protocol.flush_cache`` all arguments are evicted in any case; on remote devices all but the first
    """

    task_key: str
    module_json: str
    trace_json: str | None = None
    decisions: tuple[int, ...] = ()
    best_s: float = math.inf
    check: bool = False
    cold: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    error        ok, build, run, timeout, crash or wrong-result
    latencies_s  mean seconds of each repeat, empty unless ok
    message      one line on the failure
    checked      the output was compared and found equal
    disturbed    to be measured again: the sentinel found the machine not quiet in every timing or, for a failure, just before it; the
                 worker died of another program before all repeats were taken; or a GPU ran out of memory
    build_s      seconds spent building
    """

    error: str
    latencies_s: tuple[float, ...] = ()
    message: str = ""
    checked: bool = False
    disturbed: bool = False
    build_s: float = 0.0


@dataclass(frozen=True)
class Tracker:
    """Where TVM's RPC tracker listens, and the key under which its devices are listed.

    host_told   the host description that every device must give (``RemoteDevice.describe``); "": any
    wait_s      seconds to wait while the tracker lists no device of the key
    lease_s     seconds during which a worker may start work on one device; then it is another's turn
    transfer_s  seconds allowed for sending programs and arguments to a device
    """

    host: str
    port: int
    key: str
    host_told: str = ""
    wait_s: float = 60.0
    lease_s: float = 20.0
    transfer_s: float = 10.0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Setup:
    """What workers are started with: the TVM target's dictionary, protocol and limits.

    tracker       programs run on devices behind it; None: on this machine
    cold_weights  collections time the programs of tasks with large weights cold (``Job.cold``); a tuner decides by itself
    """

    target: dict
    protocol: Protocol = field(default_factory=Protocol)
    limits: Limits = field(default_factory=Limits)
    tracker: Tracker | None = None
    cold_weights: bool = False

    def times_cold(self, module_json: str) -> bool:
        """Whether a collection times the programs of the task with this module cold."""
        return self.cold_weights and is_large_json(module_json)

    @property
    def kind(self) -> Kind:
        """Kind of the platform that is measured."""
        return kind_measured(self.target, self.tracker is not None)

    def protocol_json(self, error: str = "ok", cold: bool = False) -> str:
        """Protocol and target as one line of JSON, stored with each record: latencies compare only where these lines are equal.

        Says what was evicted where the program was timed ``cold``.
        No line says that repeats before 2026-11-27 were in a row, not by turns (docs/measuring.md).
        Includes the limits where they may have decided the outcome: a timeout may pass with more time, a failed build or run
        with more memory.
        """
        limits: dict[str, Any] = {}
        if error == "timeout":
            limits = {"limits": asdict(self.limits)}
        elif error in ("build", "run") and self.limits.memory_bytes:
            limits = {"memory_bytes": self.limits.memory_bytes}
        timed = {"cold": "all but the first" if self.tracker else "weights"} if cold else {}
        return json.dumps({**asdict(self.protocol), "target": self.target, **timed, **limits}, sort_keys=True)
