"""Programs that do what a candidate must not do, as TVM's JSON: what the comparisons inject."""

from __future__ import annotations

from tcl_core.compat import load_tvm

tvm = load_tvm()

from tvm.script import ir as I  # noqa: E402
from tvm.script import tirx as T  # noqa: E402


# Sends itself the signal of an illegal instruction.
@I.ir_module
class Raises:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "raise", 4))  # SIGILL
                B[v] = A[v]


@I.ir_module
class WritesFarAway:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v + 100000000] = A[v]


# Some hours of additions.
@I.ir_module
class Counts:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("count"):
                v = T.axis.spatial(8, i)
                T.reads(A[v], B[v])
                T.writes(B[v])
                B[v] = A[v]
                for _ in T.serial(T.int64(1099511627776)):
                    B[v] = B[v] + T.float32(1)


# Some 80 MB on a stack that has eight.
@I.ir_module
class OverflowsTheStack:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("handle", "memset", T.tvm_stack_alloca("tvm_ffi_any", 5000000), 0, 80000000))
                B[v] = A[v]


# 17 GB between input and output.
@I.ir_module
class TakesMuchMemory:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float64"), B: T.Buffer((8,), "float64")):
        C = T.sblock_alloc_buffer((46000, 46000), "float64")
        for i, j in T.grid(46000, 46000):
            with T.sblock("fill"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(A[w % 8])
                T.writes(C[v, w])
                C[v, w] = A[w % 8]
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(C[v * 5000, v * 6000])
                T.writes(B[v])
                B[v] = C[v * 5000, v * 6000]


# Eight times some memory that is touched and never given back.
@I.ir_module
class Leaks:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("handle", "memset", T.call_extern("handle", "malloc", 4194304), 1, 4194304))
                B[v] = A[v]


# Half a million statements to compile.
@I.ir_module
class Unrolls:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((524288,), "float32"), B: T.Buffer((524288,), "float32")):
        for i in T.unroll(524288):
            with T.sblock("copy"):
                v = T.axis.spatial(524288, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v] = A[v]


def calling(function: str) -> str:
    """A program that calls a function of the C library eight times."""
    return ILLEGAL.replace('"raise"', f'"{function}"')


def leaking(size: int) -> str:
    """A program that keeps so many bytes of the worker's memory each time that it runs."""
    return tvm.ir.save_json(Leaks).replace("4194304", str(size // 8))


ILLEGAL = tvm.ir.save_json(Raises)
ABORTS = calling("abort")
SLEEPS = calling("pause")  # until a signal comes, and none does
COUNTS = tvm.ir.save_json(Counts)
WRITES_FAR_AWAY = tvm.ir.save_json(WritesFarAway)
OVERFLOWS_THE_STACK = tvm.ir.save_json(OverflowsTheStack)
TAKES_MUCH_MEMORY = tvm.ir.save_json(TakesMuchMemory)
UNROLLS = tvm.ir.save_json(Unrolls)
