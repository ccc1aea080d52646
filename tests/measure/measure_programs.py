"""Programs that do what a candidate must not do, as TVM's JSON."""

from __future__ import annotations

from tcl_core.compat import load_tvm

tvm = load_tvm()

from tvm.script import ir as I  # noqa: E402
from tvm.script import tirx as T  # noqa: E402


@I.ir_module
class Calls:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "abort"))
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


@I.ir_module
class Copies:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v] = A[v]


@I.ir_module
class NeedsTooMuchMemory:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((20000, 20000), "float32"), B: T.Buffer((20000, 20000), "float32")):
        for i, j in T.grid(20000, 20000):
            with T.sblock("copy"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(A[v, w])
                T.writes(B[v, w])
                B[v, w] = A[v, w]


def calling(function: str) -> str:
    """A program that calls a function of the C library eight times."""
    return tvm.ir.save_json(Calls).replace('"abort"', f'"{function}"')


ABORTS = calling("abort")
HANGS = calling("pause")  # until a signal comes, and none does
CALLS_NOTHING = calling("no_such_function")
WRITES_FAR_AWAY = tvm.ir.save_json(WritesFarAway)
TOO_BIG = tvm.ir.save_json(NeedsTooMuchMemory)
COPIES = tvm.ir.save_json(Copies)
