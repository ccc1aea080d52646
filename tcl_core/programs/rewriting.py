"""Rewriting the operators of a Relax module by patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcl_core.compat import load_tvm


def relax_and_patterns() -> tuple[Any, Any]:
    """``tvm.relax`` and its language of patterns, loaded when first needed."""
    relax = load_tvm().relax
    from tvm.relax import dpl

    return relax, dpl


def as_always(name: str, builder: Any, call: Any) -> Any:
    """What TVM's own ``LegalizeOps`` makes of an operator."""
    return load_tvm().ir.Op.get(name).get_attr("FLegalize")(builder, call)


def rewritten(module: Any, pattern: Any, function: Callable[[Any, Any], Any]) -> Any:
    """A copy of the module in which what the pattern matches is what ``function(call, matched)`` makes of it."""
    relax, dpl = relax_and_patterns()
    # What a function returns may be another name of a call, by which the pattern finds it once more.
    of_call = lambda call, matched: function(call, matched) if isinstance(call, relax.Call) else call  # noqa: E731
    module = module.clone() if hasattr(module, "clone") else load_tvm().IRModule(module.functions, attrs=module.attrs)
    for name, found in list(module.functions.items()):
        if isinstance(found, relax.Function):
            module.update_func(name, dpl.rewrite_call(pattern, of_call, found))
    return module
