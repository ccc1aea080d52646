"""Threads that work side by side, each with some of torch's own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import torch


@cache
def torch_threads(count: int, each: int = 1) -> ThreadPoolExecutor:
    """``count`` threads, each of which has ``each`` threads of torch's; how many others have stays as it is."""
    pool, all_there, others = ThreadPoolExecutor(count, thread_name_prefix="torch"), Barrier(count), torch.get_num_threads()

    def begin(_: int) -> None:
        torch.get_num_threads()  # else torch sets this thread up later, with as many as the others have
        torch.set_num_threads(each)
        all_there.wait()

    list(pool.map(begin, range(count)))
    torch.set_num_threads(others)  # what threads to come begin with
    return pool


os.register_at_fork(after_in_child=torch_threads.cache_clear)  # the threads stay behind: who asked them would wait for ever
