"""Evicts arrays from the caches of all of this machine's CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.platforms import cpu_flags

SLOW = "cache_flush_cpu_non_first_arg"  # of TVM's runtime; skips its first argument
LINE = 64  # bytes that one instruction evicts

Evict = Callable[[Sequence[Any]], None]
"""Evicts the tensors of a list, all of their bytes."""


@cache
def evictor() -> Evict:
    """The fastest function that this CPU has.

    CLFLUSHOPT evicts lines side by side, in a tenth of a millisecond for a megabyte.  ``SLOW`` waits for each line (CLFLUSH on x86),
    and takes 1 to 3, several times as long as most programs.
    """
    if "clflushopt" in cpu_flags():
        return partial(_each, _flush())
    return partial(_all, load_tvm(without_torch=True).get_global_func(SLOW))


def _each(flush: Callable[[Any], None], tensors: Sequence[Any]) -> None:
    for tensor in tensors:
        flush(tensor)


def _all(slow: Callable[..., None], tensors: Sequence[Any]) -> None:
    if tensors:
        slow(tensors[0], *tensors)


def as_bytes(tensor: Any) -> Any:
    """The tensor's memory as one of bytes, which ``evictor`` takes."""
    return tensor._create_view((math.prod(tensor.shape) * tensor.dtype.itemsize,), "uint8")


def _flush() -> Callable[[Any], None]:
    """A function that evicts a tensor of bytes, compiled for this CPU."""
    tvm = load_tvm(without_torch=True)
    return tvm.tirx.build(flush_module(), target=tvm.target.Target({"kind": "llvm", "mattr": ["+clflushopt"]}))["main"]


def flush_module() -> Any:
    """Evict each line of a tensor of bytes, then wait until all have left."""
    tvm = load_tvm(without_torch=True)
    from tvm.script import tirx as T

    @T.prim_func
    def flush(memory: T.handle):
        size = T.int64()
        data = T.match_buffer(memory, (size,), "uint8")
        for line in T.serial((size + LINE - 1) // LINE):
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.clflushopt", T.address_of(data[line * LINE])))
        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse2.mfence"))

    return tvm.IRModule({"main": flush.with_attr("global_symbol", "main")})
