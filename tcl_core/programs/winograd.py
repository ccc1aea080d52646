"""3x3 convolutions by Winograd's algorithm: fewer multiplications per output, at the price of sums before and after.

F(m, 3) computes m x m outputs from a tile of (m + 2) x (m + 2) inputs, with (m + 2)^2 multiplications for each pair of channels in
place of 9 m^2: a quarter of them for m = 4, four ninths for m = 2.  Tile, filter and products are transformed by

    Y = A^T [ (G g G^T) * (B^T d B) ] A

with one matrix product in between for each of the (m + 2)^2 elements: tiles x input channels by input channels x output channels.  The
filters are transformed when the network is built.  The schedules are those of MetaSchedule's own rules for such stages.

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308; the points of interpolation are those of
the smallest error for float32 in Barabasz et al., arXiv 1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm
from tcl_core.programs.rewriting import as_always

NAME = "relax.nn.conv2d"
POINTS = {4: (0.0, -1.0, 1.0, 0.5, -2.0), 2: (0.0, -1.0, 1.0)}  # interpolation points of F(m, 3), besides infinity
# Fewest channels for F(m, 3) to be faster than direct convolution: the sums grow with the channels, the savings with pairs of them.
CHANNELS = {4: 64, 2: 256}
# Fewest tiles that a transformed filter, four or two times as large as before, must serve: with fewer, reading filters dominates.
TILES = 32


def legalizations() -> dict[str, Callable[[Any, Any], Any]]:
    """For TVM's ``LegalizeOps``: NHWC convolutions that gain by it become Winograd's, others are legalized as usual."""
    return {NAME: _conv2d}


def tile_of(height: int, width: int, channels: int, filters: int) -> int | None:
    """The m of F(m, 3) for a convolution of stride 1 with height x width outputs; None where direct convolution is better."""
    for m, least in CHANNELS.items():
        if -(-height // m) * -(-width // m) >= TILES and min(channels, filters) >= least:
            return m
    return None


@cache
def matrices(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (m + 2, m), B (m + 2, m + 2) and G (m + 2, 3) of F(m, 3), by Toom and Cook; the last rows of A and G are the point infinity's."""
    points = np.array(POINTS[m])
    others = [np.delete(points, at) for at in range(len(points))]
    scale = [np.prod(point - rest) for point, rest in zip(points, others, strict=True)]
    a, g = (np.vstack([points[:, None] ** np.arange(width), np.eye(width)[-1]]) for width in (m, 3))
    g[:-1] /= np.array(scale)[:, None]
    rows = [np.append(np.poly(rest)[::-1], 0.0) for rest in others] + [np.poly(points)[::-1]]
    return a, np.array(rows).T, g


def _conv2d(builder: Any, call: Any) -> Any:
    data, weight = call.args
    m = _tile_of_call(call)
    if m is None:
        return as_always(NAME, builder, call)
    _, _, g = matrices(m)
    filters = np.einsum("er,ns,rsio->enio", g, g, weight.value.numpy().astype(np.float64)).astype(np.float32)
    padding = [int(width) for width in call.attrs.padding]
    return builder.call_te(_convolved, data, load_tvm().relax.const(filters), padding, m, primfunc_name_hint="conv2d_winograd")


def _tile_of_call(call: Any) -> int | None:
    attributes, weight = call.attrs, call.args[1]
    is_plain = (
        attributes.data_layout == attributes.out_layout == "NHWC"
        and attributes.kernel_layout == "HWIO"
        and {str(each.ty.dtype) for each in (*call.args, call)} == {"float32"}
        and all(int(number) == 1 for number in (*attributes.strides, *attributes.dilation, attributes.groups))
        and isinstance(weight, load_tvm().ir.GenericConst)
    )
    if not is_plain:
        return None
    rows, columns, channels, filters = (int(extent) for extent in weight.ty.shape)
    _, height, width, _ = (int(extent) for extent in call.ty.shape)
    return tile_of(height, width, channels, filters) if (rows, columns) == (3, 3) else None


def _convolved(data: Any, filters: Any, padding: Sequence[int], m: int) -> Any:
    """(batch, height, width, channels) and (m + 2, m + 2, channels, outputs) -> (batch, height', width', outputs)."""
    tvm = load_tvm()
    te, topi = tvm.te, tvm.topi
    a, b, _ = matrices(m)
    size, outputs = m + 2, int(filters.shape[3])
    batch, height, width, channels = (int(extent) for extent in data.shape)
    top, left, bottom, right = padding
    height, width = height + top + bottom - 2, width + left + right - 2  # of the output, from here on
    down, across = -(-height // m), -(-width // m)
    tiles = batch * down * across
    behind = (0, bottom + down * m - height, right + across * m - width, 0)
    padded = topi.nn.pad(data, (0, top, left, 0), behind, name="data_pad", attrs={"schedule_rule": "None"})

    tile = te.compute(
        (size, size, tiles, channels),
        lambda i, j, t, c: padded[t // (down * across), t // across % down * m + i, t % across * m + j, c],
        name="input_tile",
        attrs={"schedule_rule": "None"},
    )
    transformed = _both_sides(tile, _constant(b, "B"), "data_pack")
    k = te.reduce_axis((0, channels), name="k")
    products = te.compute(
        (size, size, tiles, outputs),
        lambda i, j, t, o: te.sum(transformed[i, j, t, k] * filters[i, j, k, o], axis=k),
        name="bgemm",
    )
    inverse = _both_sides(products, _constant(a, "A"), "inverse")
    return te.compute(
        (batch, height, width, outputs),
        lambda n, y, x, o: inverse[y % m, x % m, (n * down + y // m) * across + x // m, o],
        name="conv2d_winograd",
    )


def _both_sides(given: Any, matrix: Any, name: str) -> Any:
    """M^T X M for the (size, size) matrix X of each tile and channel; TVM has a schedule rule for this name."""
    te = load_tvm().te
    size, to = (int(extent) for extent in matrix.shape)
    p, q = (te.reduce_axis((0, size), name=axis) for axis in "pq")
    return te.compute(
        (to, to, *given.shape[2:]),
        lambda i, j, t, c: te.sum(given[p, q, t, c] * matrix[p, i] * matrix[q, j], axis=[p, q]),
        name=name,
        attrs={"schedule_rule": f"conv2d_nhwc_winograd_{name}"},
    )


def _constant(matrix: np.ndarray, name: str) -> Any:
    """A constant matrix as selects among its elements, which vanish when loops are unrolled.

    As ``topi.utils.const_matrix``, but with zero as the default: half as many selects to simplify when a program is built.
    """
    tirx, te = load_tvm().tirx, load_tvm().te

    def element(i: Any, j: Any) -> Any:
        chosen = tirx.const(0.0, "float32")
        for row, column in np.argwhere(matrix):
            chosen = tirx.Select(tirx.all(i == int(row), j == int(column)), tirx.const(float(matrix[row, column]), "float32"), chosen)
        return chosen

    return te.compute(matrix.shape, element, name=name, attrs={"const_matrix": True, "schedule_rule": "None"})
