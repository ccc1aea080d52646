"""Misbehaving programs as TVM's JSON, which tests and comparisons inject."""

from __future__ import annotations

import json

from tcl_core.compat import load_tvm

tvm = load_tvm()

from tvm.script import ir as I  # noqa: E402
from tvm.script import tirx as T  # noqa: E402


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
class Traps:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_llvm_intrin("void", "llvm.trap"))
                B[v] = A[v]


# 64 TB away, where no process of today's hardware has memory: nearer, a library may happen to lie there.
@I.ir_module
class WritesFarAway:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[T.int64(17592186044416) + T.Cast("int64", v)] = A[v]


@I.ir_module
class Compiles:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("copy"):
                v = T.axis.spatial(64, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "regcomp", B.data, "PATTERN", 1))
                B[v] = A[v]


@I.ir_module
class Asks:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "FUNCTION", "TEXT", 438))
                B[v] = A[v]


@I.ir_module
class Signals:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "kill", 123454321, 15))
                B[v] = A[v]


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


# Arguments of 1.6 GB each.
@I.ir_module
class HasLargeArguments:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((20000, 20000), "float32"), B: T.Buffer((20000, 20000), "float32")):
        for i, j in T.grid(20000, 20000):
            with T.sblock("copy"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(A[v, w])
                T.writes(B[v, w])
                B[v, w] = A[v, w]


# A 3.8 GB buffer between input and output, of which eight numbers are touched.
@I.ir_module
class NeedsLargeWorkspace:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        C = T.sblock_alloc_buffer((2**30,), "float32")
        for i in range(8):
            with T.sblock("spread"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(C[v * 2**27])
                C[v * 2**27] = A[v]
        for i in range(8):
            with T.sblock("gather"):
                v = T.axis.spatial(8, i)
                T.reads(C[v * 2**27])
                T.writes(B[v])
                B[v] = C[v * 2**27]


# A 17 GB buffer between input and output, all of it touched.
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


# Allocates and touches memory eight times, and never frees it.
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


@I.ir_module
class Adds:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("add"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v] = A[v] + A[v]


def calling(function: str) -> str:
    """A program that calls a function of the C library eight times."""
    return tvm.ir.save_json(Calls).replace('"abort"', f'"{function}"')


def asking(function: str, text: str) -> str:
    """A program that calls ``function(text, 0666)`` of the C library: ``creat``, or ``system``, which takes the text only."""
    return tvm.ir.save_json(Asks).replace('"FUNCTION"', f'"{function}"').replace('"TEXT"', f'"{text}"')


def signalling(process: int) -> str:
    """A program that sends SIGTERM to a process."""
    return tvm.ir.save_json(Signals).replace("123454321", str(process))


def leaking(size: int) -> str:
    """A program that leaks ``size`` bytes of the worker's memory on every run."""
    return tvm.ir.save_json(Leaks).replace("4194304", str(size // 8))


def adding(times: int, doubling: bool) -> str:
    """A sum to which A, or (``doubling``) the sum itself, is added ``times`` times: a deep expression, or one with 2**times terms."""
    graph = json.loads(tvm.ir.save_json(Adds))
    nodes = graph["nodes"]
    store = next(node for node in nodes if node["type"] == "tirx.BufferStore")["data"]
    first = nodes[store["value"]]
    for _ in range(times):
        sums = {"a": store["value"], "b": store["value"] if doubling else first["data"]["b"]}
        nodes.append({**first, "data": {**first["data"], **sums}})
        store["value"] = len(nodes) - 1
    return json.dumps(graph)


COPIES = tvm.ir.save_json(Copies)  # the sound one
ABORTS = calling("abort")
CALLS_NOTHING = calling("no_such_function")
ILLEGAL = tvm.ir.save_json(Traps)  # an instruction that no CPU knows
WRITES_FAR_AWAY = tvm.ir.save_json(WritesFarAway)
OVERFLOWS = tvm.ir.save_json(Compiles).replace("PATTERN", "(" * 300_000)  # the C library recurses for each bracket
HANGS = calling("pause")  # waits for a signal that never comes
COUNTS = tvm.ir.save_json(Counts)
TOO_BIG = tvm.ir.save_json(HasLargeArguments)
HOG = tvm.ir.save_json(NeedsLargeWorkspace)
TAKES_MUCH_MEMORY = tvm.ir.save_json(TakesMuchMemory)
UNROLLS = tvm.ir.save_json(Unrolls)
NEVER_BUILT = adding(60, doubling=True)  # building it would take years
TOO_DEEP = adding(100_000, doubling=False)  # for a compiler that recurses
