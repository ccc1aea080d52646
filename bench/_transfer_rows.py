"""The rows of ``transfer.py``: ways to learn a platform with few measurements when other platforms are known.

A row takes a lesson and returns which model ranks each platform of the chain afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from torch import nn

from tcl_core.chain.bridge import BridgeSettings, bridged, passes, rehearsed
from tcl_core.chain.ckd import DistillSettings, learn_next, mended
from tcl_core.chain.state import ChainState
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.learning.batches_by_task import any_usable, group_tasks
from tcl_core.learning.fit import FitSettings
from tcl_core.models import tlp
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.models.mtl_tlp import MtlTlpModel
from tcl_core.teaching import STUDENT, Member, pseudo_labelled

ZERO_SHOT, OURS = "zero-shot", "ours"
TREES = (Member("trees", 2, 1.0),)
APART = 1 << 20  # larger than any task's number
MOST_EPOCHS = 1500
FEW_EPOCHS = 20  # over the measured programs, as params.yaml has it for distillation
MTL_TLP_PROGRAMS = 60_000  # seen by MTL-TLP in all, instead of 50 epochs: some 90 s on two cores
WHOLE, TENTH, LITTLE = "all steps", "a tenth", f"{FEW_EPOCHS} epochs"
PRINTED_CL = f"{FEW_EPOCHS} epochs, CL phase as printed"
BASE_RANKS = ", the knowledge base ranks"


@dataclass(frozen=True)
class Earlier:
    """An earlier platform's measurements and hardware vector."""

    measured: Samples
    hardware: tuple[float, ...]


@dataclass(frozen=True)
class Lesson:
    """What is known when a platform is to be learned.

    state      the chain's state after the platform before
    few, rest  the platform's measured programs, and all others of the training tasks: first those that only other platforms
               measured, then the unmeasured ones
    sources_s  seconds of ``few``, then ``rest``, on each platform before, the nearest first; NaN where unmeasured
    earlier    the platforms before, in the chain's order
    fit        training settings of the bridge, whose steps and schedule the rows share
    """

    state: ChainState
    few: Samples
    rest: Samples
    sources_s: tuple[np.ndarray, ...]
    earlier: tuple[Earlier, ...]
    fit: FitSettings

    @cached_property
    def steps(self) -> int:
        """Number of optimiser steps that the bridge takes."""
        programs = concatenate([self.few, self.rest])
        parts = rehearsed(self.state.knowledge_base, programs, self.hardware, BridgeSettings().rehearsal, self.fit.seed)
        return passes(self.fit.epochs, self.few) * batches(np.concatenate([programs.tasks, *(part.tasks for part in parts)]), self.fit)

    @property
    def hardware(self) -> list[tuple[float, ...]]:
        return [platform.hardware for platform in self.earlier]

    @property
    def comparable(self) -> bool:
        """Whether any two of the measured programs share a task, of which one ran; otherwise there is no order to learn."""
        return any_usable(self.few)

    def taught(self) -> Samples:
        """All programs, labelled by trees that learned ``few``."""
        return pseudo_labelled({"tokens": self.few}, {"tokens": self.rest}, self.fit.seed, TREES)

    def one_network(self, model: MambaModel, train: Samples, steps: int, loss: str) -> Learned:
        """Train ``model`` for about ``steps`` steps; without a network it starts at random, with a student's learning rate."""
        rate = STUDENT.learning_rate if model.network is None else self.fit.learning_rate
        epochs = epochs_of(train, self.fit, steps)
        model.settings = replace(self.fit, epochs=epochs, period=epochs, learning_rate=rate, loss=loss)
        model.fit(train)
        return self.ranked_by(model, epochs * batches(train.tasks, self.fit))

    def ranked_by(self, model: CostModel, steps: int) -> Learned:
        """``model`` ranks all platforms."""
        return Learned((model,) * (len(self.earlier) + 1), replace(self.state, model=model, knowledge_base=model), steps)

    @property
    def nothing_new(self) -> Learned:
        return self.ranked_by(self.state.knowledge_base, 0)


@dataclass(frozen=True)
class Learned:
    """models  the model that ranks each platform of the chain, in its order
    state   where the next platform starts from
    steps   optimiser steps in all
    """

    models: tuple[CostModel, ...]
    state: ChainState
    steps: int


@dataclass(frozen=True)
class Row:
    """``variants`` are alternatives, of which a development fold selects the best.  ``sequential`` rows learn a chain's platforms
    one after another; the others learn the last one alone."""

    variants: dict[str, Callable[[Lesson], Learned]]
    sequential: bool = False


class Alike:
    """Scores all programs alike: a network with random weights, without its luck."""

    def predict(self, samples: Samples) -> np.ndarray:
        return np.zeros(len(samples), np.float32)


def batches(tasks: np.ndarray, settings: FitSettings) -> int:
    """Number of batches in an epoch, counted in the first."""
    groups = [rows for rows in rows_by_task(tasks) if len(rows) > 1]
    return len(group_tasks(groups, settings.batch_size, np.random.default_rng([settings.seed, 0, 0])))


def epochs_of(train: Samples, settings: FitSettings, steps: int) -> int:
    """Number of epochs, 1 to ``MOST_EPOCHS``, that comes nearest to ``steps``."""
    return int(np.clip(round(steps / batches(train.tasks, settings)), 1, MOST_EPOCHS))


def steps_of(variant: str, lesson: Lesson, phases: int = 1) -> int:
    if variant == LITTLE:
        return min(lesson.steps, phases * FEW_EPOCHS * max(1, -(-len(lesson.few) // lesson.fit.batch_size)))
    return max(1, lesson.steps // 10) if variant == TENTH else lesson.steps


def _own(given: Lesson, steps: int) -> Learned:
    if not given.comparable:
        return Learned((Alike(),) * (len(given.earlier) + 1), given.state, 0)
    return given.one_network(MambaModel(), given.few, steps, "rank")


def _own_taught(given: Lesson) -> Learned:
    if not given.comparable:
        return _own(given, 0)
    return given.one_network(MambaModel(), given.taught(), given.steps, "scores")


def _fine_tuned(given: Lesson, steps: int) -> Learned:
    if not given.comparable:
        return given.nothing_new
    return given.one_network(copy.deepcopy(given.state.knowledge_base), given.few, steps, "rank")


def _ckd(given: Lesson, steps: int) -> Learned:
    if not given.comparable:
        return given.nothing_new
    epochs = epochs_of(given.few, given.fit, steps // 2)
    state = learn_next(given.state, given.few, None, _printed(given, epochs, epochs))
    return _two_columns(given, state, 2 * epochs * batches(given.few.tasks, given.fit))


def _ckd_mended(given: Lesson, steps: int, unlabelled_cl: bool = True, base_ranks: bool = False) -> Learned:
    """Without ``unlabelled_cl`` the CL phase is the printed one; with ``base_ranks`` the knowledge base ranks all platforms."""
    if not given.comparable:
        return given.nothing_new
    labelled = given.taught()
    lesson = labelled if unlabelled_cl else given.few
    epochs, kd_epochs = (epochs_of(samples, given.fit, steps // 2) for samples in (lesson, labelled))
    settings = mended(printed := _printed(given, epochs, kd_epochs))
    if unlabelled_cl:
        settings = replace(settings, fit=given.fit, cl_period=epochs)
    else:
        settings = replace(settings, fit=printed.fit, unlabelled_cl=False)
    state = learn_next(given.state, given.few, None, settings, pseudo_labelled=labelled)
    taken = epochs * batches(lesson.tasks, given.fit) + kd_epochs * batches(labelled.tasks, given.fit)
    return _two_columns(given, replace(state, model=state.knowledge_base) if base_ranks else state, taken)


def _printed(given: Lesson, epochs: int, kd_epochs: int) -> DistillSettings:
    """The paper's settings, with schedules stretched from its 50 epochs per phase."""
    fit = FitSettings(batch_size=given.fit.batch_size, seed=given.fit.seed)
    of = DistillSettings()
    periods = {"cl_period": _stretched(of.cl_period, epochs), "kd_period": _stretched(of.kd_period, kd_epochs)}
    return DistillSettings(fit, epochs=epochs, kd_epochs=kd_epochs, **periods)


def _stretched(period: int, epochs: int) -> int:
    """A period of the paper, scaled from its 50 epochs to a phase of ``epochs``."""
    return max(1, round(period * epochs / DistillSettings().epochs))


def _two_columns(given: Lesson, state: ChainState, steps: int) -> Learned:
    return Learned((*(state.knowledge_base,) * len(given.earlier), state.model), state, steps)


def _replay(given: Lesson, steps: int) -> Learned:
    both = replayed(given.few, [platform.measured for platform in given.earlier])
    return given.one_network(copy.deepcopy(given.state.knowledge_base), both, steps, "rank")


def replayed(few: Samples, earlier: Sequence[Samples]) -> Samples:
    """``few``, repeated until they are about half of all, and ``earlier``; each repetition and platform has tasks of its own."""
    copies = max(1, round(sum(map(len, earlier)) / max(1, len(few))))
    parts = [few] * copies + list(earlier)
    room = 1 + max(int(part.tasks.max(initial=0)) for part in parts)
    return concatenate([replace(part, tasks=part.tasks + np.int32(number * room), task_names=()) for number, part in enumerate(parts)])


def _mtl_tlp(given: Lesson) -> Learned:
    platforms = [*(platform.measured for platform in given.earlier), given.few]
    learned = [any_usable(samples) for samples in platforms]
    *sources, last = (samples for samples, one in zip(platforms, learned, strict=True) if one)
    programs = len(last) + sum(map(len, sources))
    settings = replace(tlp.SETTINGS, seed=given.fit.seed)
    settings = replace(settings, epochs=max(1, min(settings.epochs, given.fit.epochs, MTL_TLP_PROGRAMS // programs)))
    model = MtlTlpModel(settings).fit(last, sources=sources)
    heads = [*(_under_head(model, 1 + place) for place in range(len(sources))), model]
    nearest = np.maximum(np.cumsum(learned) - 1, 0)  # a platform that teaches nothing is ranked by the head of the nearest one before it
    return Learned(tuple(heads[place] for place in nearest), given.state, settings.epochs * -(-programs // settings.batch_size))


def _under_head(model: MtlTlpModel, head: int) -> MtlTlpModel:
    """A copy that predicts for another of its platforms: ``head`` takes the first place, the one that predicts."""
    other = MtlTlpModel(model.settings)
    other.network = copy.deepcopy(model.network)
    other.network.heads = nn.ModuleList([other.network.heads[head]])
    return other


def _pooled(given: Lesson) -> Learned:
    heaps = [replace(p.measured, tasks=p.measured.tasks + np.int32(APART * (1 + n))) for n, p in enumerate(given.earlier)]
    labelled = pseudo_labelled({"tokens": concatenate([given.few, *heaps])}, {"tokens": given.rest}, given.fit.seed, TREES)
    return given.one_network(MambaModel(), labelled.take(labelled.tasks < APART), given.steps, "scores")


def _bridged(given: Lesson, sources_s: Sequence[np.ndarray]) -> Learned:
    settings = BridgeSettings(given.fit)
    base, machines = given.state.knowledge_base, given.hardware[::-1] if len(sources_s) else ()
    model, _ = bridged(base, given.few, given.rest, settings, sources_s=sources_s, machines=machines, earlier=given.hardware)
    return given.ranked_by(model, given.steps)


def _by_steps(learn: Callable[[Lesson, int], Learned], phases: int = 1) -> dict[str, Callable[[Lesson], Learned]]:
    """Variants of ``learn`` with all steps, and with fewer."""
    return {variant: partial(_with_steps, learn, variant, phases) for variant in (WHOLE, TENTH, LITTLE)}


def _with_steps(learn: Callable[[Lesson, int], Learned], variant: str, phases: int, given: Lesson) -> Learned:
    return learn(given, steps_of(variant, given, phases))


MENDED = {
    PRINTED_CL: lambda given: _ckd_mended(given, steps_of(LITTLE, given, 2), False),
    PRINTED_CL + BASE_RANKS: lambda given: _ckd_mended(given, steps_of(LITTLE, given, 2), False, True),
    TENTH + BASE_RANKS: lambda given: _ckd_mended(given, steps_of(TENTH, given, 2), True, True),
}
ROWS = {
    "own": Row(_by_steps(_own)),
    "own-taught": Row({WHOLE: _own_taught}),
    "fine-tuned": Row(_by_steps(_fine_tuned), sequential=True),
    "ckd": Row(_by_steps(_ckd, phases=2), sequential=True),
    "ckd-mended": Row(_by_steps(_ckd_mended, phases=2) | MENDED, sequential=True),
    "replay": Row(_by_steps(_replay), sequential=True),
    "mtl-tlp": Row({WHOLE: _mtl_tlp}),
    "pooled": Row({WHOLE: _pooled}),
    "bridge-alone": Row({WHOLE: lambda given: _bridged(given, ())}, sequential=True),
    OURS: Row({WHOLE: lambda given: _bridged(given, given.sources_s)}, sequential=True),
}
