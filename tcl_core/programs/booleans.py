"""Spell out operators on booleans as PyTorch means them: counted as integers, added as "or".

TVM's code generation rejects them as exported.  Attention masks use them: a cumulative sum of booleans numbers the documents of a packed
batch, and tokens of equal number may attend to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcl_core.compat import load_tvm

COUNTING = ("relax.cumsum", "relax.cumprod", "relax.sum", "relax.prod")
COMPARING = ("relax.equal", "relax.not_equal")


def spell_out_booleans(module: Any) -> Any:
    """The module with such operators rewritten to ones that TVM builds; unchanged if it has none."""
    tvm = load_tvm()
    relax = tvm.relax

    @relax.expr_functor.mutator
    class SpellOut(relax.PyExprMutator):  # type: ignore[name-defined]
        found = False

        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            spell = _spelling(call)
            if spell is None:
                return call
            self.found = True
            return spell(relax.op, *[self.builder_.normalize(argument) for argument in call.args])

    mutator = SpellOut(module)
    for var, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(var, mutator.visit_expr(function))
    return mutator.builder_.finalize() if mutator.found else module


def _spelling(call: Any) -> Callable[..., Any] | None:
    """A function of Relax's operators and the call's arguments that rewrites the call; None if it may stay."""
    name = getattr(call.op, "name", "")
    if name not in (*COUNTING, *COMPARING, "relax.add", "relax.multiply") or not all(_is_boolean(a) for a in call.args):
        return None
    if name in COUNTING:
        return lambda op, data: _counted(op, name, data, call)
    if name in COMPARING:
        compare = name.removeprefix("relax.")
        return lambda op, left, right: getattr(op, compare)(op.astype(left, "uint8"), op.astype(right, "uint8"))
    return lambda op, left, right: (op.logical_or if name == "relax.add" else op.logical_and)(left, right)


def _counted(op: Any, name: str, data: Any, call: Any) -> Any:
    """The sum or product in int64, as PyTorch computes it for booleans; a running one of another dtype is converted to that."""
    numbers, attributes = op.astype(data, "int64"), call.attrs
    if name in ("relax.cumsum", "relax.cumprod"):
        counted = getattr(op, name.removeprefix("relax."))(numbers, attributes.axis, "int64", bool(attributes.exclusive))
        wanted = str(call.ty.dtype)
        return counted if wanted in ("bool", "int64") else op.astype(counted, wanted)
    return getattr(op, name.removeprefix("relax."))(numbers, attributes.axis, bool(attributes.keepdims))


def _is_boolean(argument: Any) -> bool:
    return str(getattr(argument.ty, "dtype", "")) == "bool"
