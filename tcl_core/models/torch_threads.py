"""Thread pools whose threads each limit torch's own intra-op threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import torch


@cache
def torch_threads(count: int, each: int = 1) -> ThreadPoolExecutor:
    """A pool of ``count`` threads in which torch uses ``each`` threads per operation; other threads keep their number."""
    pool, all_there, others = ThreadPoolExecutor(count, thread_name_prefix="torch"), Barrier(count), torch.get_num_threads()

    def begin(_: int) -> None:
        torch.get_num_threads()  # else torch initialises this thread later, with the other threads' number
        torch.set_num_threads(each)
        all_there.wait()

    list(pool.map(begin, range(count)))
    torch.set_num_threads(others)  # the number that future threads start with
    return pool


os.register_at_fork(after_in_child=torch_threads.cache_clear)  # a forked child has no such threads and would wait for ever
