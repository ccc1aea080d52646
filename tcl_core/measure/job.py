"""What is asked of a measurement and what comes back: plain data that crosses a process boundary."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tcl_core.platforms import Kind, kind_measured


@dataclass(frozen=True)
class Protocol:
    """How a program is timed; stored with every record, since a latency means nothing without it.

    repeats            timed repeats at least, by turns with other programs; the median of their means is the latency
    max_repeats        repeats at most, while they differ by more than ``max_spread``
    max_spread         interquartile range / median of the repeats at which they are enough
    min_repeat_ms      a repeat runs the program until it has lasted this long
    max_number         but at most this many runs a repeat
    enough_s           no further repeat once the timed runs have lasted this long
    warmup             untimed runs before each repeat, at least one
    threads            of TVM's runtime
    pin_threads        each of them is bound to a core
    early_stop_factor  a program whose first two runs are this many times slower than its task's best is not repeated
    flush_cache        evict the caches before each run, which then is a repeat by itself
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
    """What a candidate program may use before it is stopped: seconds per step and bytes of address space (0: any)."""

    build_s: float = 20.0
    run_s: float = 10.0
    memory_bytes: int = 16 << 30


@dataclass(frozen=True)
class Job:
    """One program to build, run and time.

    task_key     names the task; jobs of one task that follow each other share its inputs
    module_json  the task's module as TVM's JSON
    trace_json   the sketch, as ``sketches.trace_to_json`` wrote it; None runs the module as it is
    decisions    the sketch's decision vector
    best_s       the fastest latency of the task known so far, seconds
    check        compare the output with that of the untuned module on the same inputs
    cold         evict all arguments but the first from the caches before each timed run, for in a network weights come cold;
                 the first is what the program before has just written
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
    """What became of a job.

    error        ok, build, run, timeout, crash or wrong-result
    latencies_s  mean seconds of each repeat, empty unless ok
    message      one line on the failure
    checked      the output was compared and found equal
    disturbed    the machine was not quiet while it was timed, as the sentinel shows, nor when it was timed again, or its worker died of
                 another program before it had all repeats; where it failed, it was not quiet just before, or a GPU had no memory left
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

    host_told   what every device must tell of its host (``RemoteDevice.describe``); "": anything
    wait_s      seconds for which the tracker may have no device of the key
    lease_s     seconds for which a worker may begin work on one device; then it is another's turn
    transfer_s  seconds that sending programs and arguments to a device may take
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

    tracker  the programs run on devices behind it; None: on this machine
    """

    target: dict
    protocol: Protocol = field(default_factory=Protocol)
    limits: Limits = field(default_factory=Limits)
    tracker: Tracker | None = None

    @property
    def kind(self) -> Kind:
        """Of the platform that is measured."""
        return kind_measured(self.target, self.tracker is not None)

    def protocol_json(self, error: str = "ok") -> str:
        """The protocol and the target as one line, stored with each record: equal lines, comparable latencies.

        The limits are part of it where they may have decided the outcome: a program that timed out may do with more time, and one that
        failed with more memory.
        """
        limits: dict[str, Any] = {}
        if error == "timeout":
            limits = {"limits": asdict(self.limits)}
        elif error in ("build", "run") and self.limits.memory_bytes:
            limits = {"memory_bytes": self.limits.memory_bytes}
        return json.dumps({**asdict(self.protocol), "target": self.target, **limits}, sort_keys=True)
