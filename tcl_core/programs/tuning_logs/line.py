"""What one line of a tuning log says, whatever its dialect.

A program of a log is a sketch and decisions, as all programs here are.  Its *shape* is the list of its steps without
the decisions, hashable, equal for all programs of a sketch; its *decisions* are integers.  The sketch's text is a list
of steps too, with every decision set to zero; filling in a program's decisions gives the program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LEAST_S, MOST_S = 1e-30, 1e30  # within single precision

Shape = tuple[Any, ...]

# TVM's error number (MeasureErrorNo), which dialects use -> error kind of a record, TVM's name for it.
ERRORS = {
    0: ("ok", ""),
    1: ("build", "instantiation error"),
    2: ("build", "compile error on the host"),
    3: ("build", "compile error on the device"),
    4: ("run", "runtime error on the device"),
    5: ("wrong-result", "wrong answer"),
    6: ("timeout", "build timeout"),
    7: ("timeout", "run timeout"),
    8: ("crash", "unknown error"),
}


class Malformed(ValueError):
    """A line does not follow its dialect; the message is the reason, for the report."""


class Line(NamedTuple):
    """One measured program as its log states it.

    task         JSON text of the workload without the target: equal on every platform
    target       TVM's target string
    steps        the program: knobs or transformation steps
    costs        seconds, one per repeat; meaningless where ``error_no`` is not 0
    error_no     a key of ERRORS
    stamp        seconds since 1970, 0 where the log does not say
    protocol     what is known of how it was timed: dialect and version of the log
    tvm_version  "unknown" where the log does not say
    """

    task: bytes
    target: str
    steps: list[Any]
    costs: list[float]
    error_no: int
    stamp: float
    protocol: bytes
    tvm_version: str


def check_result(costs: list[float] | None, error_no: int, stamp: float) -> None:
    """Raise Malformed for an unknown error number, an impossible latency or an impossible time."""
    if type(error_no) is not int or error_no not in ERRORS:
        raise Malformed(f"error number {error_no!r} is none of TVM's")
    if not (costs is None or isinstance(costs, list)):
        raise Malformed(f"latencies {costs!r} are no list")
    if error_no == 0 and not (costs and min(costs) > LEAST_S and max(costs) < MOST_S):
        raise Malformed(f"latencies {costs} of a program measured without error")
    if not 0 <= stamp < 1e11:
        raise Malformed(f"time stamp {stamp}")
