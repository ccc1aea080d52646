"""The next platform of a chain, learned from labels that the knowledge so far gives and few measurements correct.

A network that has learned one platform ranks another's programs better than hundreds of measurements of that other one
teach, and learning from these alone damages what it knew.  So its knowledge becomes the labels:

    1. the knowledge base scores the pool's programs with the new platform's hardware row: measured ones and further ones
    2. what the earlier platforms measured of them, where that is at hand, takes the place of their scores
    3. the measured few correct all of them (``completion``)
    4. where they are not so few, what a teacher ensemble that learned them says joins these labels (``teachers_share``)
    5. the knowledge base itself learns these thousands of labels by regression, as a teacher ensemble's student does
       (``teaching``), and beside them its own scores of the same programs under the earlier platforms' rows, so that it
       keeps what it knew (rehearsal; Robins, Connection Science 1995)

Where the measured few show no difference that can be believed, the labels of 5 are little but the knowledge base's own scores.  To
learn these again pays where it has learned from hardly more programs than they are of.  One that knows what comes with TCL they move
away from that: it stays as it is (``settled``).

What comes out is one network of the size that went in, which needs no measurement of the source to predict.  A step costs
the same however long the chain is, and so do all of them while a task has two programs for each of the earlier platforms, among which the
rehearsed ones are divided.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tcl_core.chain.completion import Completed, completed
from tcl_core.chain.method import Learned, Method, Step
from tcl_core.chain.state import ChainState, OnPhaseEpoch, in_phase
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.features.tokens import check_hardware, hardware_rows, with_hardware
from tcl_core.learning.batches_by_task import any_usable, check_latencies
from tcl_core.learning.distillation_loss import fisher_diagonal
from tcl_core.learning.fit import FitSettings, OnEpoch
from tcl_core.models.mamba import MambaModel
from tcl_core.params import Params
from tcl_core.teaching import STUDENT, standardised, teach

FEW = 1000  # measured programs up to which teachers that learned them say nothing
LEAST = 16  # paired programs that tell the scale of the scores
SCALES = 0.25, 4.0  # bounds of what a score of 1 means in log(seconds)


@dataclass(frozen=True)
class BridgeSettings:
    """How a step is learned.

    fit        of few measurements; of thousands it has more epochs (``passes``)
    rehearsal  programs rehearsed for each that is labelled
    """

    fit: FitSettings = replace(STUDENT, epochs=15, period=15, learning_rate=1e-3)
    rehearsal: float = 1.0

    @classmethod
    def of(cls, params: Params) -> BridgeSettings:
        """As params.yaml's section ``bridge`` says."""
        b, t = params.bridge, params.train
        fit = replace(
            cls().fit, epochs=b.epochs, batch_size=b.batch_size, learning_rate=b.learning_rate,
            weight_decay=t.weight_decay, clip_norm=t.gradient_clip, period=b.epochs, seed=params.seed,
        )  # fmt: skip
        return cls(fit, b.rehearsal)


class Bridge(Method):
    """``distill.method: bridge``."""

    sections, reads_both = ("train", "bridge"), True

    def epochs(self, step: Step) -> int:
        return passes(step.params.bridge.epochs, step.measured)

    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        others, source_s = step.others()
        model, labelled = bridged(
            step.state.knowledge_base, step.measured, others, BridgeSettings.of(step.params),
            source_s=source_s, settled=step.state.shipped, earlier=step.state.hardware,
            on_epoch=in_phase("bridge", on_epoch), checkpoint=step.checkpoint,
        )  # fmt: skip
        # Programs that are alone in their tasks taught it, but tell no Fisher diagonal.
        fisher = fisher_diagonal(model.network, step.measured) if any_usable(step.measured) else step.state.fisher
        state = ChainState(model, copy.deepcopy(model), fisher, step.state.hardware, step.state.shipped)
        return Learned(state.with_platform(step.hardware), labelled.share, labelled.left)


def bridged(
    base: MambaModel,
    measured: Samples,
    unlabelled: Samples,
    settings: BridgeSettings = BridgeSettings(),
    *,
    source_s: np.ndarray | None = None,
    settled: bool = False,
    earlier: Sequence[Sequence[float]] = (),
    on_epoch: OnEpoch | None = None,
    checkpoint: Path | None = None,
) -> tuple[MambaModel, Completed]:
    """The network after one more platform, and what became of the labels.

    measured    programs that ran on the platform, or failed; ``unlabelled`` further ones of the same tasks, their latencies not
                read; both with the platform's hardware row
    source_s    seconds of both, in this order, on the platform that is nearest; NaN where it did not measure them
    settled     leave the network as it is where nothing of the platforms' difference is believed, and few were measured
    earlier     hardware vectors of the platforms whose ranking is rehearsed
    checkpoint  as in ``fit_network``

    Raises DataError for latencies that are none, and for programs without a hardware row.
    """
    check_latencies(measured)
    check_hardware(measured)
    if source_s is not None and (source_s <= 0).any():
        raise DataError("a latency of the earlier platform is not positive; make its records again.")
    programs = concatenate([measured, replace(unlabelled, latencies_s=np.full(len(unlabelled), np.nan))])
    guess_s = source_seconds(base.predict(programs), programs, source_s)
    labelled = completed(programs, guess_s, programs.latencies_s, settings.fit.seed)
    model = copy.deepcopy(base)
    trust = teachers_share(measured)
    if settled and not labelled.share and not trust:
        return model, labelled
    labels_s = _on_one_scale(labelled.latencies_s, programs.tasks)
    if trust:
        labels_s = _mixed(labels_s, teach(measured, unlabelled, settings.fit.seed).latencies_s, trust, programs.tasks)
    lesson = replace(programs, latencies_s=slowest_where_failed(labels_s, programs.tasks))
    fit = settings.fit
    model.settings = replace(fit, epochs=passes(fit.epochs, measured), period=passes(fit.period, measured))
    train = concatenate([lesson, *rehearsed(base, programs, earlier, settings.rehearsal, settings.fit.seed)])
    model.fit(train, None, on_epoch, checkpoint=checkpoint)
    return model, labelled


def teachers_share(measured: Samples) -> float:
    """What teachers that learned the platform's own M measurements count in its labels, beside those that were corrected: 1 - 1000 / M.

    Measured latencies teach a network less than what trees make of them, which is smoother (``teaching``), but trees that learned some
    hundreds know little of other programs.  (On training networks of the reference data half of each harmed with 600 measured
    programs and gained with 2,400; with 7,100, three quarters of the teachers gained more: docs/learning.md.)
    """
    ran = int(np.isfinite(measured.latencies_s).sum())
    return max(0.0, 1.0 - FEW / ran) if ran and any_usable(measured) else 0.0


def passes(epochs: int, measured: Samples) -> int:
    """Epochs over the labels, the more of them the teachers': twice as many where nearly all is theirs, for smooth labels can be learned to the end."""
    return round(epochs * (1.0 + teachers_share(measured)))


def _mixed(labels_s: np.ndarray, teachers_s: np.ndarray, share: float, tasks: np.ndarray) -> np.ndarray:
    """(N,) pseudo-latencies on one scale, ``share`` of the way from the first to the teachers'; what failed by the first stays so."""
    told = np.where(np.isfinite(labels_s), _on_one_scale(teachers_s, tasks), np.inf)
    return _on_one_scale(labels_s ** (1.0 - share) * told**share, tasks)


def source_seconds(scores: np.ndarray, programs: Samples, source_s: np.ndarray | None = None) -> np.ndarray:
    """(N,) seconds that ``scores`` stand for; measured ones where ``source_s`` has them.

    What a score is worth in log(seconds) is told by the source's measurements, else by the target's, and is 1 where both are too
    few; and so is a task's level, of which scores say nothing.  (Without it the correction would learn levels, which rank no program.)
    """
    scales = (score_scale(scores, known_s, programs.tasks) for known_s in (source_s, programs.latencies_s) if known_s is not None)
    guess = -next((scale for scale in scales if scale is not None), 1.0) * scores.astype(np.float64)
    for task in rows_by_task(programs.tasks):
        for seconds in (source_s, programs.latencies_s):
            mine = task[:0] if seconds is None else task[np.isfinite(seconds[task])]
            if len(mine):
                guess[task] += np.mean(np.log(seconds[mine]) - guess[mine])
                break
    if source_s is not None:
        there = ~np.isnan(source_s)
        guess[there] = np.log(source_s[there])
    return np.exp(guess)


def score_scale(scores: np.ndarray, seconds: np.ndarray, tasks: np.ndarray) -> float | None:
    """Least squares slope of minus log(seconds) on the scores within tasks; None where too few programs tell."""
    x, y = [], []
    for task in rows_by_task(tasks):
        known = task[np.isfinite(seconds[task])]
        if len(known) > 1:
            x.append(scores[known] - scores[known].mean())
            y.append(-np.log(seconds[known]) + np.log(seconds[known]).mean())
    if sum(map(len, x)) < LEAST:
        return None
    x, y = np.concatenate(x).astype(np.float64), np.concatenate(y)
    return float(np.clip(x @ y / max(x @ x, 1e-12), *SCALES))


def rehearsed(base: MambaModel, programs: Samples, earlier: Sequence[Sequence[float]], share: float, seed: int) -> list[Samples]:
    """Programs under each earlier platform's hardware row, in tasks of their own, labelled with what ``base`` says of them.

    Not of one whose row is their own, for to the network that is this platform: what was measured of it would be unlearned.
    """
    earlier = [row for row in earlier if len(programs) and not np.array_equal(hardware_rows(row, 1)[0], programs.features[0, 0])]
    if not earlier or not share:
        return []
    draw, count = np.random.default_rng([seed, 2]), int(share * len(programs) / len(earlier))
    first, parts = int(programs.tasks.max(initial=-1)) + 1, []
    for number, hardware in enumerate(earlier):
        part = with_hardware(programs.take(np.sort(_by_whole_tasks(programs.tasks, count, draw))), hardware)
        scores = standardised(base.predict(part), part.tasks)
        parts.append(replace(part, tasks=part.tasks + np.int32(first * (number + 1)), latencies_s=np.exp(-scores)))
    return parts


def _by_whole_tasks(tasks: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """Rows of some ``count`` programs, the same number of each task."""
    groups = list(rows_by_task(tasks))
    each = max(2, round(count / len(groups)))
    return np.concatenate([draw.permutation(rows)[:each] for rows in groups])


def slowest_where_failed(latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(N,) with its task's slowest label for a program that fails: to a regression one without a label is unknown, and its like stay fast."""
    found = latencies_s.copy()
    for task in rows_by_task(tasks):
        ran = np.isfinite(latencies_s[task])
        if ran.any():
            found[task[~ran]] = latencies_s[task[ran]].max()
    return found


def _on_one_scale(latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Pseudo-latencies on the scale of a teacher ensemble's scores, which the network has learned; failed programs stay so."""
    ran = np.isfinite(latencies_s)
    found = np.full(len(latencies_s), np.inf)
    found[ran] = np.exp(-standardised(-np.log(latencies_s[ran]), tasks[ran]))
    return found
