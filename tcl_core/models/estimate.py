"""An analytical estimate of a program's time, from its tokens alone: the part of a score that follows from the hardware row.

    time(x)  =  sum over terms i of  cost_i * work_i(x, hardware)

The work is counted: vector instructions of the platform's width, moves of sums that its registers do not hold, turns of loops, bytes
that pass each of three caches, all as uneven as the parallel loop divides among its threads, and the start of its threads.  Only the
seven costs are learned, once, from the first data that a model sees.  A network, or trees, add what counting misses.

A model that learned one vector width knows nothing of another: no program of its data tells what the hardware row's numbers do.  The
counted work changes with these numbers as it does on the machine, so a new platform is ranked better before anything was measured on
it (docs/learning.md).  (Roofline models count likewise: Williams, Waterman and Patterson, CACM 2009.)

Programs without tiling levels (imported logs) and those bound to a GPU's threads get 0: the hardware row of a GPU has other fields.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.features.layout import ANNOTATE, HARDWARE, KINDS, LEVEL, WORKLOAD, kinds_of, numbers_of
from tcl_core.features.nest import LINE_BYTES
from tcl_core.features.tokens import REACHING
from tcl_core.platforms import Hardware

TERMS = ("instructions", "sums", "turns", "through L1", "through L2", "through L3", "threads")
LEVELS = 8  # most tiling levels, which are a program's last tokens
FIELD = {field.name: place for place, field in enumerate(fields(Hardware))}
UNKNOWN = {"simd_bytes": 16.0, "threads": 1.0}  # what stands for 0 in a hardware row
FLOAT_BYTES = 4
WIDE, REGISTERS, MORE_REGISTERS = 16, 16, 32  # floats of AVX-512's vectors; registers with narrower vectors, and with these
SPARE = 2  # registers that hold operands
# Bytes that a tile may have to stay in L1, L2 and L3.  Those that the hardware row reports ranked unseen platforms no better: a virtual
# machine's L3 is its host's, hundreds of MiB.
ROOMS = (2.0**14, 2.0**19, 2.0**24)
START = 1e4  # work that starting the threads counts for, so that all terms are of one magnitude
EACH, MOST = 16, 4096  # programs of a task, and in all, that the costs are learned from
HELD = 0.3  # how firmly a cost stays near that of equal shares in the time
NOTHING, MUCH = 1e-6, 1e30  # bounds of a term's work, whose logarithm is taken


class Estimate(nn.Module):
    """Minus the logarithm of the estimated time, in units of the scores that it was fitted to; has no trained parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_costs", torch.zeros(len(TERMS)))
        self.register_buffer("unit", torch.zeros(()))  # 0: nothing learned yet

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores, higher is faster, of (B, L, F) tokens."""
        return -self.unit * self.log_time(tokens, lengths)

    def scores(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores of programs in tokens."""
        if not len(samples):  # without programs there may be no rows to look at
            return np.zeros(0, dtype=np.float32)
        with torch.no_grad():
            return self(torch.from_numpy(samples.features).float(), torch.from_numpy(samples.lengths.astype(np.int64))).numpy()

    def log_time(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) logarithms of the estimated times, up to a constant; 0 where nothing is counted."""
        counted, known = work(tokens, lengths)
        return torch.logsumexp(counted.log() + self.log_costs, dim=1) * known

    def learn(self, train: Samples) -> None:
        """Fit the costs to the programs' labels within tasks: least squares on the logarithm, far ones counting linearly."""
        taken = _few_of_each(train)
        labels = torch.from_numpy(np.log(train.scores[taken], dtype=np.float64))
        counted, known = work(torch.from_numpy(train.features[taken]).float(), torch.from_numpy(train.lengths[taken].astype(np.int64)))
        if not known.any():
            return
        x, labels = counted[known].log().double(), labels[known]
        groups = torch.from_numpy(np.unique(train.tasks[taken][known.numpy()], return_inverse=True)[1])
        start = -x.exp().mean(0).clamp_min(START).log()  # a term that no program here has stays small in others
        costs, log_unit = start.clone().requires_grad_(), torch.zeros((), dtype=torch.float64, requires_grad=True)
        steps = torch.optim.LBFGS([costs, log_unit], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            steps.zero_grad()
            error = _within(labels + log_unit.exp() * torch.logsumexp(x + costs, dim=1), groups)
            value = 2.0 * ((1.0 + error**2).sqrt() - 1.0).sum() + HELD**2 * ((costs - start) ** 2).sum()
            value.backward()
            return value

        steps.step(loss)
        # Rounded: the order of sums, and with it their last bits, depends on the number of threads.
        self.log_costs.copy_(costs.detach().round(decimals=3))
        self.unit.copy_(log_unit.detach().exp().round(decimals=3))


def work(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, terms) counted work of (B, L, F) tokens, more than 0; and (B,) whether a program has any to count."""
    used = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    hardware = _first(0, "hardware", tokens)[:, HARDWARE.fields]
    operations = _numbers(_first(1, "workload", tokens)[:, WORKLOAD.sizes.start])
    bytes_wide, threads = (_told(hardware, name) for name in UNKNOWN)
    width, threads = (bytes_wide / FLOAT_BYTES).round().clamp_min(1.0), threads.round().clamp_min(1.0)
    parallel, vector, unrolled = _reaches(tokens, used).unbind(1)

    place = lengths[:, None] - 1 - torch.arange(LEVELS, device=tokens.device)  # innermost level first
    first = torch.arange(len(tokens), device=tokens.device)[:, None] * tokens.shape[1]
    rows = F.embedding(first + place.clamp_min(0), tokens.flatten(0, 1))  # whole rows: five times as fast as ``gather``
    level = (kinds_of(rows)[..., KINDS.index("level")] == 1) & (place >= 0)
    rows = numbers_of(rows)
    inside = torch.where(level, _numbers(rows[..., LEVEL.work.start]), 0.0)  # (B, levels) iterations from a level on
    reduces = level & (rows[..., LEVEL.reduces.start] > 0)
    touched = torch.where(level[..., None], _numbers(rows[..., LEVEL.lines]), 0.0).sum(2) * LINE_BYTES
    total = inside.amax(1).clamp_min(1.0)

    uneven = (parallel / threads).ceil() * threads / parallel
    instructions = (vector / width).ceil() / vector  # for one operation
    tile = torch.where(level[:, 0] & ~reduces[:, 0], inside[:, 0], 1.0).clamp_min(1.0)  # sums that the innermost levels add to at once
    held = tile * instructions <= torch.where(width >= WIDE, MORE_REGISTERS, REGISTERS) - SPARE
    added = torch.where(reduces.any(1), _numbers(rows[..., LEVEL.trips.start]).gather(1, reduces.int().argmax(1, keepdim=True))[:, 0], 1.0)
    passed = [total * _bytes_per_iteration(level, inside, touched, room) for room in ROOMS]
    found = [
        operations * instructions,
        total * instructions / torch.where(held, added.clamp_min(1.0), 1.0),
        total / (vector * unrolled),
        *passed,
    ]
    counted = torch.stack([*(term * uneven for term in found), torch.where(parallel > 1, START, 0.0)], dim=1)
    bound = (used & (tokens[..., KINDS.index("Bind")] == 1)).any(1)
    return counted.clamp(NOTHING, MUCH), level.any(1) & ~bound


def _bytes_per_iteration(level: Tensor, inside: Tensor, touched: Tensor, room: float) -> Tensor:
    """(B,) bytes that enter a cache per iteration: those of the largest tile that fits into its room; of a line where none does."""
    fits = level & (touched <= room)
    largest = torch.where(fits, inside, -1.0).argmax(1, keepdim=True)
    found = touched.gather(1, largest) / inside.gather(1, largest).clamp_min(1.0)
    return torch.where(fits.any(1), found[:, 0], float(LINE_BYTES))


def _numbers(logarithms: Tensor) -> Tensor:
    """The sizes that a token's numbers stand for (``layout.log2p``)."""
    return torch.exp2(logarithms) - 1.0


def _first(place: int, kind: str, tokens: Tensor) -> Tensor:
    """(B, M) the numbers of each program's row at ``place``; zeros where it is of another kind."""
    if tokens.shape[1] <= place:
        return tokens.new_zeros(len(tokens), tokens.shape[2] - len(KINDS))
    return numbers_of(tokens[:, place]) * kinds_of(tokens[:, place])[:, KINDS.index(kind), None]


def _told(hardware: Tensor, name: str) -> Tensor:
    """(B,) a field of the hardware rows, or what stands for unknown."""
    told = _numbers(hardware[:, FIELD[name]])
    return torch.where(told > 0, told, UNKNOWN[name])


def _reaches(tokens: Tensor, used: Tensor) -> Tensor:
    """(B, 3) iterations that run in parallel, that make a vector and that are unrolled, each at least 1."""
    numbers, mine = numbers_of(tokens), used & (tokens[..., KINDS.index("Annotate")] == 1)
    keys = numbers[..., ANNOTATE.key.start : ANNOTATE.key.start + len(REACHING)] * mine[..., None]
    return _numbers((keys * numbers[..., ANNOTATE.reach]).amax(1)).round().clamp_min(1.0)


def _few_of_each(train: Samples) -> np.ndarray:
    """Rows of programs that ran, ``EACH`` of each task at most and at least two, in tasks drawn until there are ``MOST``."""
    draw, ran, taken, count = np.random.default_rng(0), np.isfinite(train.latencies_s), [], 0
    groups = [rows[ran[rows]] for rows in rows_by_task(train.tasks)]
    for number in draw.permutation(len(groups)).tolist():
        rows = draw.permutation(groups[number])[:EACH]
        if len(rows) > 1 and count < MOST:
            taken.append(rows)
            count += len(rows)
    return np.concatenate(taken) if taken else np.zeros(0, np.int64)


def _within(values: Tensor, groups: Tensor) -> Tensor:
    """(N,) values minus the mean of their group."""
    sums = torch.zeros(int(groups.max()) + 1, dtype=values.dtype).index_add(0, groups, values)
    return values - (sums / torch.bincount(groups))[groups]
