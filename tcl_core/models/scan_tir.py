"""The kernels of ``scan_kernel`` in TVMScript, and their compilation.

Symbols are explained in ``scan_kernel``.  Channels are processed in blocks of ``LANES``, one vector register each; a
block's N states stay in registers.  The backward kernel recomputes the whole forward pass, stores the states and decays
of one block, and goes through them in reverse.

Each function here builds one kernel, or parts shared by kernels, for a shape (W, N, R, K).  TVM parses the source of
the decorated functions and inlines a part (``T.inline``) where it is called.
"""

from __future__ import annotations

import math

from tcl_core.platforms.host import cpu_flags

LANES = V = 16
CONV, U, STEP, DELTA, GRAD_U, GRAD_STEP = range(6)  # arrays of the scratch ``room``: before, after silu; before, after softplus; gradients


def compiled(name: str, *shape: int):
    """TVM executable of kernel ``name`` (of ``KERNELS``) for W, N, R and K, compiled for this CPU."""
    from tcl_core.compat import load_tvm

    tvm = load_tvm()
    module = tvm.IRModule({name: KERNELS[name](*shape)})
    return tvm.compile(module, target=tvm.target.Target(_this_cpu(tvm)))


def _this_cpu(tvm) -> dict:
    """TVM target of this CPU.  LLVM goes by family and model; vector extensions that Linux does not list are disabled."""
    named = {"kind": "llvm", "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")()}
    hidden = [feature for feature in ("avx512f", "avx2", "avx") if feature not in cpu_flags()] if "sse2" in cpu_flags() else []
    return named | ({"mattr": [f"-{feature}" for feature in hidden]} if hidden else {})


def padded(columns: int) -> int:
    """``columns`` rounded up to whole registers."""
    return columns + -columns % V


# --- arithmetic ---


def exp2(x):
    """2^x for x <= 126: an integer power, added to the exponent bits, times a polynomial on [-1/2, 1/2], off by 8e-8 at most."""
    from tvm.script import tirx as T

    x = T.max(x, T.float32(-126.0))
    whole = T.nearbyint(x)
    f = x - whole
    p = T.float32(0.001339086336)
    for c in (0.009676031918, 0.05550357114, 0.2402210749, 0.693147188, 1.000000075):
        p = p * f + T.float32(c)
    return T.reinterpret("float32", T.reinterpret("int32", p) + T.shift_left(T.Cast("int32", whole), 23))


def sigmoid(x):
    from tvm.script import tirx as T

    return T.float32(1.0) / (T.float32(1.0) + exp2(T.min(x * T.float32(-1.0 / math.log(2.0)), T.float32(126.0))))


def silu_slope(x, s):
    """Derivative of x sigmoid(x), where s = sigmoid(x)."""
    from tvm.script import tirx as T

    return s * (T.float32(1.0) + x * (T.float32(1.0) - s))


def softplus(x):
    """max(x, 0) + log(1 + e^-|x|); the logarithm of 1 + z is 2 artanh(z / (z + 2))."""
    from tvm.script import tirx as T

    z = exp2(T.min(x, T.float32(0.0) - x) * T.float32(1.0 / math.log(2.0)))
    s = z / (z + T.float32(2.0))
    p = T.float32(2.0 / 11.0)
    for n in (9, 7, 5, 3, 1):
        p = p * (s * s) + T.float32(2.0 / n)
    return T.max(x, T.float32(0.0)) + s * p


# --- common start of all kernels ---


def prepare_part(W, N, R, K):
    """Everything before the scan for program b: fills ``room`` and the scalars ``s``, which take ``registers`` registers a token."""
    from tvm.script import tirx as T

    @T.inline
    def prepare(b, length, registers, projected, index, taps, bias, inner, dt, dt_bias, room, s, v, sums):
        for t, d in T.grid(length, W // V):
            for k in T.vectorized(V):
                v[k] = bias[d * V + k]
            for j in T.unroll(K):
                if t + j >= K - 1:
                    for k in T.vectorized(V):
                        v[k] = v[k] + taps[j, d * V + k] * projected[index[b, t + j - (K - 1)], d * V + k]
            for k in T.vectorized(V):
                room[CONV, t, d * V + k] = v[k]
                room[U, t, d * V + k] = v[k] * sigmoid(v[k])
        for t in range(length):
            for r in T.unroll(registers):
                for k in T.vectorized(V):
                    sums[0, r, k] = T.float32(0)
                    sums[1, r, k] = T.float32(0)
            for d in range(W // 2):
                for half in T.unroll(2):  # two independent chains of additions hide each other's latency
                    for r in T.unroll(registers):
                        for k in T.vectorized(V):
                            sums[half, r, k] = sums[half, r, k] + room[U, t, 2 * d + half] * inner[2 * d + half, r * V + k]
            for r in T.unroll(registers):
                for k in T.vectorized(V):
                    s[t, r * V + k] = sums[0, r, k] + sums[1, r, k]
        for t, d in T.grid(length, W // V):
            for k in T.vectorized(V):
                v[k] = dt_bias[d * V + k]
            for r in T.unroll(R):
                for k in T.vectorized(V):
                    v[k] = v[k] + s[t, r] * dt[r, d * V + k]
            for k in T.vectorized(V):
                room[STEP, t, d * V + k] = v[k]
                room[DELTA, t, d * V + k] = softplus(v[k])

    return prepare


# --- output of every token; 0 past a program's end ---


def forward_kernel(W, N, R, K):
    from tvm.script import tirx as T

    scalars = R + 2 * N
    S = padded(scalars)
    prepare = prepare_part(W, N, R, K)

    @T.prim_func(s_tir=True)
    def forward(
        projected_: T.handle, index_: T.handle, lengths_: T.handle, taps_: T.handle, bias_: T.handle, inner_: T.handle,
        x_proj_: T.handle, dt_: T.handle, dt_bias_: T.handle, A_: T.handle, D_: T.handle, room_: T.handle, s_: T.handle,
        out_: T.handle,
    ):  # fmt: skip
        T.func_attr({"global_symbol": "forward", "tirx.noalias": True})
        batch, longest, rows = T.int64(), T.int64(), T.int64()
        projected = T.match_buffer(projected_, (rows, 2 * W), "float32")
        index = T.match_buffer(index_, (batch, longest), "int64")
        lengths = T.match_buffer(lengths_, (batch,), "int64")
        taps = T.match_buffer(taps_, (K, W), "float32")
        bias = T.match_buffer(bias_, (W,), "float32")
        inner = T.match_buffer(inner_, (W, S), "float32")
        x_proj = T.match_buffer(x_proj_, (scalars, W), "float32")  # noqa: F841  (only backward reads it)
        dt = T.match_buffer(dt_, (R, W), "float32")
        dt_bias = T.match_buffer(dt_bias_, (W,), "float32")
        A = T.match_buffer(A_, (N, W), "float32")
        D = T.match_buffer(D_, (W,), "float32")
        room = T.match_buffer(room_, (4, longest, W), "float32")
        s = T.match_buffer(s_, (longest, S), "float32")
        out = T.match_buffer(out_, (batch, longest, W), "float32")
        h = T.alloc_buffer((N, V), "float32", scope="local")
        v = T.alloc_buffer((V,), "float32", scope="local")
        sums = T.alloc_buffer((2, S // V, V), "float32", scope="local")
        for b in range(batch):
            length: T.let = T.max(lengths[b], T.int64(1))
            for t, d in T.grid(longest - length, W // V):
                for k in T.vectorized(V):
                    out[b, length + t, d * V + k] = T.float32(0)
            prepare(b, length, S // V, projected, index, taps, bias, inner, dt, dt_bias, room, s, v, sums)
            for d in range(W // V):
                for n in T.unroll(N):
                    for k in T.vectorized(V):
                        h[n, k] = T.float32(0)
                for t in range(length):
                    for k in T.vectorized(V):
                        v[k] = D[d * V + k] * room[U, t, d * V + k]
                    for n in T.unroll(N):
                        for k in T.vectorized(V):
                            h[n, k] = (
                                exp2(room[DELTA, t, d * V + k] * A[n, d * V + k]) * h[n, k]
                                + room[DELTA, t, d * V + k] * room[U, t, d * V + k] * s[t, R + n]
                            )
                            v[k] = v[k] + h[n, k] * s[t, R + N + n]
                    for k in T.vectorized(V):
                        out[b, t, d * V + k] = v[k] * projected[index[b, t], W + d * V + k] * sigmoid(projected[index[b, t], W + d * V + k])

    return forward


# --- output of each program's last token ---


def end_parts(W, N, R, K):
    """``project_end``: C of the token at ``end``.  ``run_states``: a block's states after the last token."""
    from tvm.script import tirx as T

    READS = padded(N)

    @T.inline
    def project_end(end, room, outer, read):
        for r in T.unroll(READS // V):
            for k in T.vectorized(V):
                read[r, k] = T.float32(0)
        for d in range(W):
            for r in T.unroll(READS // V):
                for k in T.vectorized(V):
                    read[r, k] = read[r, k] + room[U, end, d] * outer[d, r * V + k]

    @T.inline
    def run_states(d, length, room, s, A, h):
        for n in T.unroll(N):
            for k in T.vectorized(V):
                h[n, k] = T.float32(0)
        for t in range(length):
            for n in T.unroll(N):
                for k in T.vectorized(V):
                    h[n, k] = (
                        exp2(room[DELTA, t, d * V + k] * A[n, d * V + k]) * h[n, k]
                        + room[DELTA, t, d * V + k] * room[U, t, d * V + k] * s[t, R + n]
                    )

    return project_end, run_states


def last_kernel(W, N, R, K):
    from tvm.script import tirx as T

    STEPS, READS = padded(R + N), padded(N)  # scalars for step size and B; for C
    prepare, (project_end, run_states) = prepare_part(W, N, R, K), end_parts(W, N, R, K)

    @T.prim_func(s_tir=True)
    def last(
        projected_: T.handle, index_: T.handle, lengths_: T.handle, taps_: T.handle, bias_: T.handle, inner_: T.handle,
        outer_: T.handle, dt_: T.handle, dt_bias_: T.handle, A_: T.handle, D_: T.handle, room_: T.handle, s_: T.handle,
        out_: T.handle,
    ):  # fmt: skip
        T.func_attr({"global_symbol": "last", "tirx.noalias": True})
        batch, longest, rows = T.int64(), T.int64(), T.int64()
        projected = T.match_buffer(projected_, (rows, 2 * W), "float32")
        index = T.match_buffer(index_, (batch, longest), "int64")
        lengths = T.match_buffer(lengths_, (batch,), "int64")
        taps = T.match_buffer(taps_, (K, W), "float32")
        bias = T.match_buffer(bias_, (W,), "float32")
        inner = T.match_buffer(inner_, (W, STEPS), "float32")
        outer = T.match_buffer(outer_, (W, READS), "float32")
        dt = T.match_buffer(dt_, (R, W), "float32")
        dt_bias = T.match_buffer(dt_bias_, (W,), "float32")
        A = T.match_buffer(A_, (N, W), "float32")
        D = T.match_buffer(D_, (W,), "float32")
        room = T.match_buffer(room_, (4, longest, W), "float32")
        s = T.match_buffer(s_, (longest, STEPS), "float32")
        out = T.match_buffer(out_, (batch, W), "float32")
        h = T.alloc_buffer((N, V), "float32", scope="local")
        v = T.alloc_buffer((V,), "float32", scope="local")
        sums = T.alloc_buffer((2, STEPS // V, V), "float32", scope="local")
        read = T.alloc_buffer((READS // V, V), "float32", scope="local")
        for b in range(batch):
            length: T.let = T.max(lengths[b], T.int64(1))
            end: T.let = length - 1
            prepare(b, length, STEPS // V, projected, index, taps, bias, inner, dt, dt_bias, room, s, v, sums)
            project_end(end, room, outer, read)
            for d in range(W // V):
                run_states(d, length, room, s, A, h)
                for k in T.vectorized(V):
                    v[k] = D[d * V + k] * room[U, end, d * V + k]
                for n in T.unroll(N):
                    for k in T.vectorized(V):
                        v[k] = v[k] + h[n, k] * read[n // V, n % V]
                for k in T.vectorized(V):
                    out[b, d * V + k] = v[k] * projected[index[b, end], W + d * V + k] * sigmoid(projected[index[b, end], W + d * V + k])

    return last


# --- gradients ---


def rows_of_grads(N, R, K):
    """First row of bias, x_proj, dt, dt_bias, A and D in ``grads``; the taps come before them, from row 0."""
    bias, x = K, K + 1
    dt = x + R + 2 * N
    return bias, x, dt, dt + R, dt + R + 1, dt + R + 1 + N


def begin_parts(W, N, R, K):
    """``clear``: zero the sums over a program's tokens.  ``replay``: recompute and store a block's states and decays."""
    from tvm.script import tirx as T

    scalars, SKIP = R + 2 * N, rows_of_grads(N, R, K)[-1]

    @T.inline
    def clear(length, lanes, part):
        for t, r in T.grid(length, scalars):
            for k in T.vectorized(V):
                lanes[t, r, k] = T.float32(0)
        for r, d in T.grid(SKIP + 1, W // V):
            for k in T.vectorized(V):
                part[r, d * V + k] = T.float32(0)

    @T.inline
    def replay(d, length, room, s, A, states, grad_h):
        for n in T.unroll(N):
            for k in T.vectorized(V):
                states[0, 0, n, k] = T.float32(0)
                grad_h[n, k] = T.float32(0)
        for t in range(length):
            for n in T.unroll(N):
                for k in T.vectorized(V):
                    states[1, t, n, k] = exp2(room[DELTA, t, d * V + k] * A[n, d * V + k])
                    states[0, t + 1, n, k] = (
                        states[1, t, n, k] * states[0, t, n, k] + room[DELTA, t, d * V + k] * room[U, t, d * V + k] * s[t, R + n]
                    )

    return clear, replay


def output_part(W, N, R, K):
    """Backward through a token's output: the gradients of the gate and of y, which is recomputed."""
    from tvm.script import tirx as T

    @T.inline
    def through_output(b, d, t, projected, index, D, room, s, states, grad, grad_projected, v, into, slope, grad_y):
        for k in T.vectorized(V):
            v[k] = D[d * V + k] * room[U, t, d * V + k]
            into[k] = T.float32(0)
            slope[k] = T.float32(0)
        for n in T.unroll(N):
            for k in T.vectorized(V):
                v[k] = v[k] + states[0, t + 1, n, k] * s[t, R + N + n]
        for k in T.vectorized(V):
            grad_y[k] = sigmoid(projected[index[b, t], W + d * V + k])
            grad_projected[index[b, t], W + d * V + k] = grad_projected[index[b, t], W + d * V + k] + grad[b, t, d * V + k] * v[
                k
            ] * silu_slope(projected[index[b, t], W + d * V + k], grad_y[k])
            grad_y[k] = grad_y[k] * projected[index[b, t], W + d * V + k] * grad[b, t, d * V + k]

    return through_output


def states_part(W, N, R, K):
    """Backward through a token's states: gradients of A, B, C, D, dt, the step size, and the scan's part of u's."""
    from tvm.script import tirx as T

    _, _, DT, DT_BIAS, DECAY, SKIP = rows_of_grads(N, R, K)
    LN2 = T.float32(math.log(2.0))

    @T.inline
    def through_states(d, t, dt, A, D, room, s, states, lanes, part, into, slope, grad_y, grad_h):
        for n in T.unroll(N):
            for k in T.vectorized(V):
                grad_h[n, k] = grad_h[n, k] + grad_y[k] * s[t, R + N + n]
                lanes[t, R + N + n, k] = lanes[t, R + N + n, k] + grad_y[k] * states[0, t + 1, n, k]
                lanes[t, R + n, k] = lanes[t, R + n, k] + grad_h[n, k] * (room[DELTA, t, d * V + k] * room[U, t, d * V + k])
                into[k] = into[k] + grad_h[n, k] * s[t, R + n]
                grad_h[n, k] = grad_h[n, k] * states[1, t, n, k]
                slope[k] = slope[k] + grad_h[n, k] * states[0, t, n, k] * A[n, d * V + k]
                part[DECAY + n, d * V + k] = part[DECAY + n, d * V + k] + grad_h[n, k] * states[0, t, n, k] * room[DELTA, t, d * V + k]
        for k in T.vectorized(V):
            room[GRAD_U, t, d * V + k] = into[k] * room[DELTA, t, d * V + k] + D[d * V + k] * grad_y[k]
            slope[k] = (into[k] * room[U, t, d * V + k] + slope[k] * LN2) * sigmoid(room[STEP, t, d * V + k])
            part[SKIP, d * V + k] = part[SKIP, d * V + k] + grad_y[k] * room[U, t, d * V + k]
            part[DT_BIAS, d * V + k] = part[DT_BIAS, d * V + k] + slope[k]
        for r in T.unroll(R):
            for k in T.vectorized(V):
                part[DT + r, d * V + k] = part[DT + r, d * V + k] + slope[k] * s[t, r]
                lanes[t, r, k] = lanes[t, r, k] + slope[k] * dt[r, d * V + k]

    return through_states


def input_parts(W, N, R, K):
    """``through_projection``: gradients of s and x_proj.  ``through_convolution``: back to u, through silu and the taps."""
    from tvm.script import tirx as T

    scalars, (BIAS, X, *_) = R + 2 * N, rows_of_grads(N, R, K)

    @T.inline
    def through_projection(length, room, lanes, grad_s, part, v):
        for t, r in T.grid(length, scalars):
            grad_s[t, r] = T.float32(0)
            for k in T.unroll(V):
                grad_s[t, r] = grad_s[t, r] + lanes[t, r, k]
        for r, d in T.grid(scalars, W // V):
            for k in T.vectorized(V):
                v[k] = part[X + r, d * V + k]
            for t in range(length):
                for k in T.vectorized(V):
                    v[k] = v[k] + grad_s[t, r] * room[U, t, d * V + k]
            for k in T.vectorized(V):
                part[X + r, d * V + k] = v[k]

    @T.inline
    def through_convolution(b, length, projected, index, taps, x_proj, room, grad_s, part, grad_projected, v):
        for t, d in T.grid(length, W // V):
            for k in T.vectorized(V):
                v[k] = room[GRAD_U, t, d * V + k]
            for r in T.unroll(scalars):
                for k in T.vectorized(V):
                    v[k] = v[k] + grad_s[t, r] * x_proj[r, d * V + k]
            for k in T.vectorized(V):
                v[k] = v[k] * silu_slope(room[CONV, t, d * V + k], sigmoid(room[CONV, t, d * V + k]))
                room[GRAD_U, t, d * V + k] = v[k]
                part[BIAS, d * V + k] = part[BIAS, d * V + k] + v[k]
            for j in T.unroll(K):
                if t + j >= K - 1:
                    for k in T.vectorized(V):
                        part[j, d * V + k] = part[j, d * V + k] + v[k] * projected[index[b, t + j - (K - 1)], d * V + k]
        for t, d in T.grid(length, W // V):
            for k in T.vectorized(V):
                v[k] = grad_projected[index[b, t], d * V + k]
            for j in T.unroll(K):
                if t + (K - 1) - j < length:
                    for k in T.vectorized(V):
                        v[k] = v[k] + taps[j, d * V + k] * room[GRAD_U, t + (K - 1) - j, d * V + k]
            for k in T.vectorized(V):
                grad_projected[index[b, t], d * V + k] = v[k]

    return through_projection, through_convolution


def backward_kernel(W, N, R, K):
    from tvm.script import tirx as T

    scalars, SKIP = R + 2 * N, rows_of_grads(N, R, K)[-1]
    S = padded(scalars)
    prepare, (clear, replay) = prepare_part(W, N, R, K), begin_parts(W, N, R, K)
    through_output, through_states = output_part(W, N, R, K), states_part(W, N, R, K)
    through_projection, through_convolution = input_parts(W, N, R, K)

    @T.prim_func(s_tir=True)
    def backward(
        projected_: T.handle, index_: T.handle, lengths_: T.handle, taps_: T.handle, bias_: T.handle, inner_: T.handle,
        x_proj_: T.handle, dt_: T.handle, dt_bias_: T.handle, A_: T.handle, D_: T.handle, room_: T.handle, s_: T.handle,
        states_: T.handle, lanes_: T.handle, grad_s_: T.handle, part_: T.handle, grad_: T.handle, grad_projected_: T.handle,
        grads_: T.handle,
    ):  # fmt: skip
        T.func_attr({"global_symbol": "backward", "tirx.noalias": True})
        batch, longest, rows = T.int64(), T.int64(), T.int64()
        projected = T.match_buffer(projected_, (rows, 2 * W), "float32")
        index = T.match_buffer(index_, (batch, longest), "int64")
        lengths = T.match_buffer(lengths_, (batch,), "int64")
        taps = T.match_buffer(taps_, (K, W), "float32")
        bias = T.match_buffer(bias_, (W,), "float32")
        inner = T.match_buffer(inner_, (W, S), "float32")
        x_proj = T.match_buffer(x_proj_, (scalars, W), "float32")
        dt = T.match_buffer(dt_, (R, W), "float32")
        dt_bias = T.match_buffer(dt_bias_, (W,), "float32")
        A = T.match_buffer(A_, (N, W), "float32")
        D = T.match_buffer(D_, (W,), "float32")
        room = T.match_buffer(room_, (6, longest, W), "float32")
        s = T.match_buffer(s_, (longest, S), "float32")
        states = T.match_buffer(states_, (2, longest + 1, N, V), "float32")  # h, then the decays
        lanes = T.match_buffer(lanes_, (longest, scalars, V), "float32")  # gradient of s, not yet summed over lanes
        grad_s = T.match_buffer(grad_s_, (longest, scalars), "float32")
        part = T.match_buffer(part_, (SKIP + 1, W), "float32")  # one program's contribution to grads
        grad = T.match_buffer(grad_, (batch, longest, W), "float32")
        grad_projected = T.match_buffer(grad_projected_, (rows, 2 * W), "float32")
        grads = T.match_buffer(grads_, (SKIP + 1, W), "float32")
        v = T.alloc_buffer((V,), "float32", scope="local")
        sums = T.alloc_buffer((2, S // V, V), "float32", scope="local")
        grad_h = T.alloc_buffer((N, V), "float32", scope="local")
        grad_y = T.alloc_buffer((V,), "float32", scope="local")
        into = T.alloc_buffer((V,), "float32", scope="local")  # gradient of delta u, through the states
        slope = T.alloc_buffer((V,), "float32", scope="local")  # gradient of delta, through the decays
        for b in range(batch):
            length: T.let = T.max(lengths[b], T.int64(1))
            prepare(b, length, S // V, projected, index, taps, bias, inner, dt, dt_bias, room, s, v, sums)
            clear(length, lanes, part)
            for d in range(W // V):
                replay(d, length, room, s, A, states, grad_h)
                for step in range(length):
                    t: T.let = length - 1 - step
                    through_output(b, d, t, projected, index, D, room, s, states, grad, grad_projected, v, into, slope, grad_y)
                    through_states(d, t, dt, A, D, room, s, states, lanes, part, into, slope, grad_y, grad_h)
            through_projection(length, room, lanes, grad_s, part, v)
            through_convolution(b, length, projected, index, taps, x_proj, room, grad_s, part, grad_projected, v)
            for r, d in T.grid(SKIP + 1, W // V):
                for k in T.vectorized(V):
                    grads[r, d * V + k] = grads[r, d * V + k] + part[r, d * V + k]

    return backward


KERNELS = {"forward": forward_kernel, "last": last_kernel, "backward": backward_kernel}
