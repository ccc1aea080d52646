"""Runs one function on many jobs in several processes of this machine; each starts afresh and dies with this one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeVar

from tcl_core.errors import TclError
from tcl_core.process import die_with_parent

Job = TypeVar("Job")
Found = TypeVar("Found")


def side_by_side(
    work: Callable[[Job], Found], jobs: Sequence[Job], processes: int, prepare: Callable[[], object], died: TclError
) -> Iterator[tuple[Job, Found]]:
    """Yield (job, ``work(job)``) in order of completion; with ``processes`` 1, work in this process, without ``prepare``.

    Each process first calls ``prepare``.  ``work``, ``prepare`` and the jobs are sent to the processes, so they must be
    module-level functions and plain data.  Raises what ``work`` raises, and ``died`` when something kills a process.
    """
    if processes == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(prepare,))
    try:
        futures = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException as error:
        for child in set(active_children()) - others:
            child.kill()  # else this process would wait for the running jobs before it ends
        if isinstance(error, BrokenProcessPool):
            raise died from None
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start(prepare: Callable[[], object]) -> None:
    """Die with the parent, and leave Ctrl-C to it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
