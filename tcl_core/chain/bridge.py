"""Learn a chain's next platform from pseudo-labels: the knowledge base's scores, corrected by a few measurements.

A network that has learned one platform ranks another's programs better than a network trained on hundreds of the other's
measurements; fine-tuning it on those alone damages what it knew.  So its knowledge becomes the labels:

    1. the knowledge base scores measured and unlabelled programs of the pool with the new platform's hardware row
    2. where an earlier platform measured a program, its seconds replace the score, changed as the work that is counted for both
       platforms' hardware says (``models.estimate``)
    3. the few measurements on the new platform correct all of these labels (``completion``): each earlier platform's by the
       difference to that platform.  Of several that measured a program those near to the new platform count most
    4. if there are more than a few, labels by a teacher ensemble trained on them are mixed in (``teachers_share``)
    5. the knowledge base is trained on these thousands of labels by regression, like a teacher ensemble's student
       (``teaching``), and also on its own scores of the same programs under the earlier platforms' hardware rows, so that
       it does not forget them (rehearsal; Robins, Connection Science 1995)

If the measurements show no reliable difference between the platforms, the labels of step 5 are little more than the knowledge
base's own scores.  Training on them again helps a network that has learned from few programs, but harms one that knows the data
that comes with TCL: that one is left unchanged (``settled``).

The result is one network of the same size, which predicts without any measurement of the source.  Rehearsed programs are
divided among the earlier platforms, so training costs the same however long the chain is, as long as this leaves each of those
platforms two programs per task.  (The correction's trees are grown for each earlier platform with records: a second or two.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tcl_core.chain.completion import Completed, combined, completed
from tcl_core.chain.method import Learned, Method, Step
from tcl_core.chain.state import ChainState, OnPhaseEpoch, in_phase
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.features.tokens import check_hardware, hardware_rows, with_hardware
from tcl_core.learning.batches_by_task import any_usable, check_latencies
from tcl_core.learning.distillation_loss import fisher_diagonal
from tcl_core.learning.fit import FitSettings, OnEpoch
from tcl_core.models.mamba import MambaModel
from tcl_core.params import Params
from tcl_core.teaching import STUDENT, standardised, teach

FEW = 1000  # measured programs up to which teachers trained on them are not used
LEAST = 16  # fewest paired programs to estimate the scale of the scores
SCALES = 0.25, 4.0  # bounds of a score unit's worth in log(seconds)
COUNTED = 0.75  # how much of the counted change is applied to an earlier platform's seconds


@dataclass(frozen=True)
class BridgeSettings:
    """Settings of one step along the chain.

    fit        training settings for few measurements; thousands get more epochs (``passes``)
    rehearsal  rehearsed programs per labelled program
    """

    fit: FitSettings = replace(STUDENT, epochs=15, period=15, learning_rate=1e-3)
    rehearsal: float = 1.0

    @classmethod
    def of(cls, params: Params) -> BridgeSettings:
        """Settings from params.yaml's sections ``bridge`` and ``train``."""
        b, t = params.bridge, params.train
        fit = replace(
            cls().fit, epochs=b.epochs, batch_size=b.batch_size, learning_rate=b.learning_rate,
            weight_decay=t.weight_decay, clip_norm=t.gradient_clip, period=b.epochs, seed=params.seed,
        )  # fmt: skip
        return cls(fit, b.rehearsal)


class Bridge(Method):
    """``distill.method: bridge``."""

    sections, reads_all = ("train", "bridge"), True

    def epochs(self, step: Step) -> int:
        return passes(step.params.bridge.epochs, step.measured)

    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        others, sources_s, machines = step.others()
        model, labelled = bridged(
            step.state.knowledge_base, step.measured, others, BridgeSettings.of(step.params),
            sources_s=sources_s, machines=machines, settled=step.state.shipped, earlier=step.state.hardware,
            on_epoch=in_phase("bridge", on_epoch), checkpoint=step.checkpoint,
        )  # fmt: skip
        # Programs that are alone in their tasks can train it, but give no Fisher diagonal.
        fisher = fisher_diagonal(model.network, step.measured) if any_usable(step.measured) else step.state.fisher
        state = ChainState(model, copy.deepcopy(model), fisher, step.state.hardware, step.state.shipped)
        return Learned(state.with_platform(step.hardware), labelled.share, labelled.left)


def bridged(
    base: MambaModel,
    measured: Samples,
    unlabelled: Samples,
    settings: BridgeSettings = BridgeSettings(),
    *,
    sources_s: Sequence[np.ndarray] = (),
    machines: Sequence[Sequence[float]] = (),
    settled: bool = False,
    earlier: Sequence[Sequence[float]] = (),
    on_epoch: OnEpoch | None = None,
    checkpoint: Path | None = None,
) -> tuple[MambaModel, Completed]:
    """The network after one more platform, and the corrected labels (before teachers' labels are mixed in).

    measured    programs measured on the platform, failed ones included, with its hardware row
    unlabelled  more programs of the same tasks, with the same hardware row; their latencies are not read
    sources_s   (M + U,) seconds of measured, then unlabelled programs on each earlier platform with measurements, in any order;
                NaN where not measured
    machines    hardware vector of each of these platforms; none: their seconds count as they are
    settled     leave the network unchanged if the correction's share is 0 and few programs were measured
    earlier     hardware vectors of the platforms whose ranking is rehearsed
    checkpoint  as in ``fit_network``

    Raises DataError for invalid latencies, and for programs without a hardware row; UsageError for another number of ``machines`` than of
    ``sources_s``.
    """
    check_latencies(measured)
    check_hardware(measured)
    if any((source_s <= 0).any() for source_s in sources_s):
        raise DataError("a latency of an earlier platform is not positive; make its records again.")
    if len(machines) not in (0, len(sources_s)):
        raise UsageError(
            f"there are measurements of {len(sources_s)} earlier platforms, and the hardware of {len(machines)}; give that of each"
        )
    programs = concatenate([measured, replace(unlabelled, latencies_s=np.full(len(unlabelled), np.nan))])
    scores, sources_s = base.predict(programs), [np.asarray(source_s, dtype=np.float64) for source_s in sources_s]
    for place, hardware in enumerate(machines):
        sources_s[place] = sources_s[place] * np.exp(COUNTED * base.counted_change(programs, hardware))
    guesses_s = [source_seconds(scores, programs, source_s) for source_s in (sources_s if len(sources_s) else (None,))]
    by_source = [completed(programs, guess_s, programs.latencies_s, settings.fit.seed) for guess_s in guesses_s]
    labelled = combined(by_source, sources_s, programs.latencies_s, programs.tasks) if len(by_source) > 1 else by_source[0]
    model = copy.deepcopy(base)
    trust = teachers_share(measured)
    if settled and not labelled.share and not trust:
        return model, labelled
    labels_s = _on_one_scale(labelled.latencies_s, programs.tasks)
    if trust:
        labels_s = _mixed(labels_s, teach(measured, unlabelled, settings.fit.seed).latencies_s, trust, programs.tasks)
    fit = settings.fit
    model.settings = replace(fit, epochs=passes(fit.epochs, measured), period=passes(fit.period, measured))
    old = rehearsed(base, programs, earlier, settings.rehearsal, settings.fit.seed)
    train = concatenate([replace(programs, latencies_s=labels_s), *old])
    model.fit(train, None, on_epoch, checkpoint=checkpoint)
    return model, labelled


def teachers_share(measured: Samples) -> float:
    """Weight of teachers trained on the platform's own M programs that ran, against the corrected labels: max(0, 1 - 1000 / M).

    A network learns more from trees' scores, which are smoother, than from measured latencies (``teaching``), but trees trained
    on a few hundred programs know little about others.  (On training networks of the reference data, a weight of one half harmed
    with 600 measured programs and helped with 2,400; with 7,100, three quarters helped more: docs/learning.md.)
    """
    ran = int(np.isfinite(measured.latencies_s).sum())
    return max(0.0, 1.0 - FEW / ran) if ran and any_usable(measured) else 0.0


def passes(epochs: int, measured: Samples) -> int:
    """Epochs over the labels: up to twice ``epochs`` as ``teachers_share`` nears 1, since smooth labels bear longer training."""
    return round(epochs * (1.0 + teachers_share(measured)))


def _mixed(labels_s: np.ndarray, teachers_s: np.ndarray, share: float, tasks: np.ndarray) -> np.ndarray:
    """(N,) pseudo-latencies on one scale: labels and teachers' mixed with weight ``share``; failed labels stay failed."""
    told = np.where(np.isfinite(labels_s), _on_one_scale(teachers_s, tasks), np.inf)
    return _on_one_scale(labels_s ** (1.0 - share) * told**share, tasks)


def source_seconds(scores: np.ndarray, programs: Samples, source_s: np.ndarray | None = None) -> np.ndarray:
    """(N,) seconds that ``scores`` stand for, or the measured ones where ``source_s`` has them.

    A score unit's worth in log(seconds) is estimated from the source's measurements, else from the target's; it is 1 if both are
    too few.  Scores contain no task levels, so these are estimated likewise; otherwise the correction would learn them, and
    levels rank no programs.  A level estimated from the target's measurements is brought to the source's by the mean ratio of
    programs that ran on both.
    """
    source_s = np.full(len(scores), np.nan) if source_s is None else source_s
    both = np.isfinite(source_s) & np.isfinite(programs.latencies_s)
    slower = np.log(programs.latencies_s[both] / source_s[both]).mean() if both.any() else 0.0
    scales = (score_scale(scores, known_s, programs.tasks) for known_s in (source_s, programs.latencies_s))
    guess = -next((scale for scale in scales if scale is not None), 1.0) * scores.astype(np.float64)
    for task in rows_by_task(programs.tasks):
        for seconds, above in ((source_s, 0.0), (programs.latencies_s, slower)):
            mine = task[np.isfinite(seconds[task])]
            if len(mine):
                guess[task] += np.mean(np.log(seconds[mine]) - guess[mine]) - above
                break
    there = ~np.isnan(source_s)
    guess[there] = np.log(source_s[there])
    return np.exp(guess)


def score_scale(scores: np.ndarray, seconds: np.ndarray, tasks: np.ndarray) -> float | None:
    """Least-squares slope of minus log(seconds) on the scores within tasks, clipped to ``SCALES``; None for too few programs."""
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
    """Programs with each earlier platform's hardware row, labelled with ``base``'s scores; every platform gets its own tasks.

    Skips a platform with the programs' own hardware row: to the network that is this platform, and its new labels would be
    unlearned.
    """
    earlier = [row for row in earlier if len(programs) and not np.array_equal(hardware_rows(row, 1)[0], programs.features[0, 0])]
    if not earlier or not share:
        return []
    draw, count = np.random.default_rng([seed, 2]), int(share * len(programs) / len(earlier))
    # Beyond all names: those of tasks that these programs lack would be taken for the rehearsed ones'.
    room, parts = max(int(programs.tasks.max(initial=-1)) + 1, len(programs.task_names)), []
    names = tuple(programs.task_name(task) for task in range(room))
    for number, hardware in enumerate(earlier, start=1):
        part = with_hardware(programs.take(np.sort(_by_whole_tasks(programs.tasks, count, draw))), hardware)
        scores = standardised(base.predict(part), part.tasks)
        tasks, numbered = part.tasks + np.int32(room * number), names * (number + 1)
        parts.append(replace(part, tasks=tasks, latencies_s=np.exp(-scores), task_names=numbered))
    return parts


def _by_whole_tasks(tasks: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """Rows of about ``count`` random programs, equally many of each task, at least two where it has them."""
    groups = list(rows_by_task(tasks))
    each = max(2, round(count / len(groups)))
    return np.concatenate([draw.permutation(rows)[:each] for rows in groups])


def _on_one_scale(latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Pseudo-latencies on the scale of a teacher ensemble's scores, which the network has learned; failed programs stay inf."""
    ran = np.isfinite(latencies_s)
    found = np.full(len(latencies_s), np.inf)
    found[ran] = np.exp(-standardised(-np.log(latencies_s[ran]), tasks[ran]))
    return found
