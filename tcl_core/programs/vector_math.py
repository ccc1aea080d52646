"""Exponentials, error functions and hyperbolic tangents as arithmetic, which runs in vectors.

LLVM calls the C library for each element of these.  A call costs as much as some twenty multiplications, keeps the loop around it
from being vectorised, and takes longer for some values than for others, so that a program's latency depends on its data.  The
polynomials here are those of the Cephes library (exp) and of Eigen (erf, tanh), to within a few units in the last place of float32.

They turn NaN into a number: a network whose exponentials give NaN may give something else.  Within softmax and sigmoid the exponential
of -inf is 1.2e-38, which their sums do not feel; one whose logarithm may be taken is 0 (``exp_to_zero``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.programs.rewriting import as_always

# Cephes: exp(r) is about 1 + r + r^2 P(r) for |r| <= ln(2) / 2, highest power first.
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
EXP_RANGE = (-87.33654, 88.37626)  # whose exponentials are normal numbers of float32
EXP_ZERO = -88.0  # n is -127 there, and all bits of 2^n are 0
LN2 = (0.693359375, -2.12194440e-4)  # in two parts, the first so short that its multiples are exact

# Eigen: x P(x^2) / Q(x^2), highest power first; constant beyond the bound.
ERF_BOUND = 4.0
ERF = (
    (-2.72614225801306e-10, 2.77068142495902e-8, -2.10102402082508e-6, -5.69250639462346e-5,
     -7.34990630326855e-4, -2.95459980854025e-3, -1.60960333262415e-2),
    (-1.45660718464996e-5, -2.13374055278905e-4, -1.68282697438203e-3, -7.37332916720468e-3, -1.42647390514189e-2),
)  # fmt: skip
TANH_BOUND = 7.90531110763549805
TANH = (
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-8,
     1.48572235717979e-5, 6.37261928875436e-4, 4.89352455891786e-3),
    (1.19825839466702e-6, 1.18534705686654e-4, 2.26843463243900e-3, 4.89352518554385e-3),
)  # fmt: skip


def exp(x: Any, least: float = EXP_RANGE[0]) -> Any:
    """e to the power of a float32 expression, and of ``least`` below that: 2^n exp(r), where x = n ln(2) + r with an integer n."""
    tirx = load_tvm().tirx
    x = _clamped(x, least, EXP_RANGE[1])
    n = tirx.floor(x * (1 / math.log(2)) + 0.5)
    r = x - n * LN2[0] - n * LN2[1]
    power = tirx.reinterpret("float32", (n.astype("int32") + 127) << 23)
    return (_horner(EXP, r) * r * r + r + 1.0) * power


def exp_to_zero(x: Any) -> Any:
    """``exp``, 0 from ``EXP_ZERO`` down: a sum of powers of -inf has the logarithm -inf."""
    return exp(x, EXP_ZERO)


def erf(x: Any) -> Any:
    """The error function of a float32 expression; up to some units in the last place beyond -1 and 1."""
    return _odd_rational(x, ERF_BOUND, *ERF)


def erf_within_one(x: Any) -> Any:
    """``erf``, never beyond -1 and 1: the root of 1 - erf(x)^2 is a number."""
    return _clamped(erf(x), -1.0, 1.0)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of a float32 expression."""
    return _odd_rational(x, TANH_BOUND, *TANH)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + exp(0.0 - x))


def gelu(x: Any) -> Any:
    return x * (0.5 + 0.5 * erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def silu(x: Any) -> Any:
    return x * sigmoid(x)


ELEMENTWISE = {
    "relax.exp": exp_to_zero, "relax.erf": erf_within_one, "relax.tanh": tanh, "relax.sigmoid": sigmoid,
    "relax.nn.gelu": gelu, "relax.nn.gelu_tanh": gelu_tanh, "relax.nn.silu": silu,
}  # fmt: skip


def legalizations() -> dict[str, Callable[[Any, Any], Any]]:
    """For TVM's ``LegalizeOps``: operator -> its legalization in float32; other dtypes are legalized as usual."""
    return {name: _elementwise(name, function) for name, function in ELEMENTWISE.items()} | {"relax.nn.softmax": _softmax}


def _elementwise(name: str, function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def legalized(builder: Any, call: Any) -> Any:
        if str(call.ty.dtype) != "float32":
            return as_always(name, builder, call)
        te = load_tvm().te
        hint = name.rpartition(".")[2]

        def computed(x: Any) -> Any:
            return te.compute(x.shape, lambda *at: function(x[at]), name=f"T_{hint}", tag="elemwise")

        return builder.call_te(computed, call.args[0], primfunc_name_hint=hint)

    return legalized


def _softmax(builder: Any, call: Any) -> Any:
    if str(call.ty.dtype) != "float32":
        return as_always("relax.nn.softmax", builder, call)
    return builder.call_te(softmax, call.args[0], int(call.attrs.axis) % call.ty.ndim, primfunc_name_hint="softmax")


def softmax(x: Any, axis: int) -> Any:
    """Softmax along one axis of a tensor, in TVM's four stages."""
    te = load_tvm().te
    shape = list(x.shape)
    rows = shape[:axis] + shape[axis + 1 :]

    def row(at: Sequence[Any]) -> tuple[Any, ...]:
        return (*at[:axis], *at[axis + 1 :])

    def reduced(over: Any, reduce: Callable[..., Any], name: str) -> Any:
        k = te.reduce_axis((0, shape[axis]), name="k")
        return te.compute(rows, lambda *at: reduce(over[(*at[:axis], k, *at[axis:])], axis=k), name=name)

    most = reduced(x, te.max, "T_softmax_maxelem")
    powers = te.compute(shape, lambda *at: exp(x[at] - most[row(at)]), name="T_softmax_exp")
    total = reduced(powers, te.sum, "T_softmax_expsum")
    return te.compute(shape, lambda *at: powers[at] / total[row(at)], name="T_softmax_norm")


def _odd_rational(x: Any, bound: float, numerator: Sequence[float], denominator: Sequence[float]) -> Any:
    x = _clamped(x, -bound, bound)
    return x * _horner(numerator, x * x) / _horner(denominator, x * x)


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    value = coefficients[0] * x + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _clamped(x: Any, low: float, high: float) -> Any:
    tirx = load_tvm().tirx
    return tirx.max(tirx.min(x, tirx.const(high, "float32")), tirx.const(low, "float32"))
