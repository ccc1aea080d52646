"""Stages that make the chain's models: train, distill."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import provenance, reference, registry, shipped_model, store
from tcl_core.chain import named
from tcl_core.chain.state import ChainState, fit_settings, learn_first, within_steps
from tcl_core.checked import write_contents, write_json
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.features.batches import Samples, concatenate, slowest_where_failed
from tcl_core.features.tokens import hardware_rows
from tcl_core.files import whole_folder
from tcl_core.learning.batches_by_task import any_usable
from tcl_core.models import catalogue
from tcl_core.models.mamba import MambaModel
from tcl_core.params import Params
from tcl_core.platforms import Hardware, cpu_named, read_saved_hardware, save_hardware
from tcl_core.progress import Progress, progress, say
from tcl_core.records import ProgramKey
from tcl_core.stages.exchange import tuned_keys, tuned_samples, was_tuned
from tcl_core.stages.machine import training_alone
from tcl_core.stages.workspace import SCRATCH, Skipped, Workspace, with_registry
from tcl_core.teaching import members, pseudo_labelled


class _Curve:
    """Collects what each epoch reports and advances the progress bar."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown
        self.epochs: list[dict[str, Any]] = []

    def __call__(self, phase: str, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        self.epochs.append({"phase": phase, "epoch": epoch, "loss": loss, **metrics})
        self.shown.advance(f"{phase} loss {loss:.4f}" + (f", top-1 {metrics['valid_top1']:.3f}" if metrics else ""))


@dataclass(frozen=True)
class TrainReport:
    """How many programs a model learned from: measured ones, further ones that a teacher ensemble labelled, those shipped with TCL,
    and those that tuning measured.
    """

    model: str
    platform: str
    measured: int
    labelled: int = 0
    shipped: int = 0
    tuned: int = 0

    def __str__(self) -> str:
        shipped = f", on {self.shipped} that come with TCL" if self.shipped else ""
        tuned = f", on {self.tuned} of earlier tunings" if self.tuned else ""
        more = f", and on {self.labelled} that a teacher ensemble labelled" if self.labelled else ""
        return f"trained on {self.measured} measured programs of {self.platform}{shipped}{tuned}{more}"


@dataclass(frozen=True)
class DistillReport:
    """How the next platform was learned.

    share  how far the measured difference between the platforms is believed, 0 to 1, where the method weighs it (``completion``)
    left   share of that difference that stays unexplained
    kept   the model is the previous platform's, since there was nothing to learn
    """

    platform: str
    before: str
    measured: int
    share: float | None = None
    left: float | None = None
    kept: bool = False

    def __str__(self) -> str:
        if self.kept:
            return (
                f"{self.measured} programs of {self.platform} show no difference from {self.before} that can be believed: "
                f"its model stays as it is for {self.platform}"
            )
        weighed = ""
        if self.share is not None:
            weighed = f"; the difference is believed by {self.share:.0%}, which leaves {self.left:.0%} of it unexplained"
        return f"learned {self.platform} from {self.measured} programs and what {self.before} knew{weighed}"


def train(workspace: Workspace) -> TrainReport:
    """Train on the chain's first platform -> data/models/P/."""
    platform = workspace.params.chain.first
    if reason := workspace.skipped(platform):
        raise PlatformError(f"the chain starts at {platform}, which was skipped ({reason}); set chain.first in params.yaml")
    checkpoint = workspace.journal / "checkpoints" / platform
    with training_alone(checkpoint), workspace.timed("train"):
        origin = _origin(workspace, "train", [platform], "train")
        measured, valid = workspace.split_by_task(workspace.samples(platform), workspace.params.train.validation_share)
        beside = _beside(workspace, valid)
        labelled = _with_unlabelled(workspace, platform, measured, beside)
        settings = within_steps(fit_settings(workspace.params), len(labelled), workspace.params.train.steps)
        with progress(f"training on {platform}", settings.epochs) as shown:
            curve = _Curve(shown)
            state = learn_first(labelled, valid, settings, measured=measured, on_epoch=curve, checkpoint=checkpoint)
        tasks = beside.tasks | workspace.recorded_tasks(platform)
        state = replace(state, shipped=beside.shipped > 0, tasks=tasks)
        state = state.with_platform(read_saved_hardware(workspace.records_folder(platform)).vector())
        _save(workspace, platform, state, curve, checkpoint, origin)
    more = len(beside)
    return TrainReport(
        catalogue.CHAIN_MODEL, platform, len(measured), len(labelled) - len(measured) - more, beside.shipped, more - beside.shipped
    )


def _learns_shipped(params: Params) -> bool:
    mcpu = params.platforms[params.chain.first].mcpu
    return params.train.shipped and params.candidates.design_space == "cpu" and not shipped_model.why_unknown(mcpu)


@dataclass(frozen=True)
class _Beside:
    """What the first model learns beside the project's own records; its tasks are numbered after the project's.

    measured  sets of measured programs, of which the first ``shipped`` programs come with TCL
    further   sets of programs that nobody measured
    tasks     keys of all their tasks
    """

    measured: Sequence[Samples] = ()
    further: Sequence[Samples] = ()
    shipped: int = 0
    tasks: frozenset[str] = frozenset()

    def __len__(self) -> int:
        """Number of measured programs."""
        return sum(map(len, self.measured))


def _beside(workspace: Workspace, valid: Samples | None) -> _Beside:
    """Programs that come with TCL, if params.yaml wants them and the chain begins with the kind of CPU that they were measured on,
    and programs that tuning measured; without the tasks of held-out networks and of ``valid``.
    """
    if not learns_beside(workspace):
        return _Beside()
    apart = {row["task_key"] for row in workspace.networks if row["split"] == "held_out"}
    if valid is not None:
        kept_apart = set(valid.tasks.tolist())
        apart |= {key for key, number in workspace.encoder.numbers.items() if number in kept_apart}
    here = read_saved_hardware(workspace.records_folder(workspace.params.chain.first))
    measured, further, first, tasks = list[Samples](), list[Samples](), len(workspace.tasks), set[str]()
    if _learns_shipped(workspace.params):
        sets = reference.learned_sets()
        heaps = (reference.shipped(heap, sets) for heap in (lambda data: data.pooled(apart), lambda data: data.unmeasured(apart)))
        for heap, into in zip(heaps, (measured, further), strict=True):
            into.append(_numbered(as_here(heap, here), first))
        tasks |= set().union(*(data.trained_keys(apart) for data in sets))
    shipped = sum(map(len, measured))
    for platform in _tunings(workspace):  # a model that learned searched programs serves the next search best
        width = float(cpu_named(workspace.params.platforms[platform].mcpu).simd_bytes)
        heap = tuned_samples(workspace, platform, replace(here, simd_bytes=width).vector(), apart)
        first = max(first, *(1 + int(part.tasks.max(initial=-1)) for part in (*measured, *further)), 0)  # an empty set adds no task
        measured.append(_numbered(heap, first))
        tasks |= tuned_keys(workspace, platform, apart)
    return _Beside(measured, further, shipped, frozenset(tasks))


def learns_beside(workspace: Workspace) -> bool:
    """Whether the chain's first model learns more than the project's own records; then nothing is lowered for it."""
    return _learns_shipped(workspace.params) or bool(_tunings(workspace))


def _numbered(samples: Samples, first: int) -> Samples:
    return replace(samples, tasks=samples.tasks + np.int32(first), task_names=())


def _tunings(workspace: Workspace) -> list[str]:
    """CPU platforms whose programs from ``tcl tune`` params.yaml wants learned; empty for a pool that is not a CPU's."""
    params = workspace.params
    if not params.train.tuned or params.candidates.design_space != "cpu":
        return []
    return [name for name, platform in params.platforms.items() if platform.mcpu and was_tuned(workspace, name)]


def as_here(samples: Samples, here: Hardware) -> Samples:
    """The programs as if this machine had measured them: with its hardware row, except for the vector width.

    Otherwise only the project's own programs would show this machine, all with the first platform's vector width, and all other widths
    would belong to another machine: a network would go by the machine, and rank every later platform's programs like the first one's.
    """
    own, wider = (hardware_rows(replace(here, simd_bytes=width).vector(), 1)[0] for width in (16.0, 32.0))
    features = samples.features.copy()
    features[:, 0] = np.where(own != wider, features[:, 0], own)
    return replace(samples, features=features)


def _with_unlabelled(workspace: Workspace, platform: str, measured: Samples, beside: _Beside) -> Samples:
    """The programs, labelled by a teacher ensemble that learned from them, and further ones that it labelled too (``teaching``)."""
    # Shipped and tuned programs are not lowered: it would take minutes.
    reads = ("tokens",) if beside else ("tokens", "per-store features")
    asked = sum(catalogue.own_settings(member.model).epochs for member, _ in members(reads))
    with progress(f"asking a teacher ensemble about programs of {platform}", asked) as shown:
        return _pseudo_labelled(workspace, platform, measured, reads, beside, shown.advance)


def _pseudo_labelled(
    workspace: Workspace,
    platform: str,
    measured: Samples,
    reads: Sequence[str],
    beside: _Beside = _Beside(),
    on_epoch: Callable[[str], None] = lambda name: None,
) -> Samples:
    """Label as ``_with_unlabelled``, by the members of the teacher ensemble that read one of ``reads``.

    Where params.yaml wants no further programs: the measured latencies, a failed program with its task's slowest.
    """
    count, tasks = workspace.params.train.unlabelled, np.unique(measured.tasks)
    if not count:
        alone = concatenate([measured, *beside.measured])
        return replace(alone, latencies_s=slowest_where_failed(alone.latencies_s, alone.tasks))
    more = workspace.unlabelled(tasks, count, platform, reads)
    views = {each: workspace.samples_in(each, platform) for each in more}
    views = {each: samples.take(np.isin(samples.tasks, tasks)) for each, samples in views.items()}
    views["tokens"] = concatenate([views["tokens"], *beside.measured])
    more["tokens"] = concatenate([more["tokens"], *beside.further])
    return pseudo_labelled(views, more, workspace.params.seed, on_epoch=on_epoch)


@with_registry
def distill(workspace: Workspace, platform: str, from_registry: bool = False) -> DistillReport | Skipped:
    """Learn the next platform of the chain, by params.yaml's ``distill.method`` -> data/models/P/.

    It starts from the previous platform's model or, with ``from_registry``, from that platform's champion, wherever that was trained.
    Raises UsageError for an unknown platform and for the chain's first.
    """
    workspace.check_platform(platform)
    if platform == workspace.params.chain.first:
        raise UsageError(f"{platform} is the chain's first platform and has nothing to learn from; run: tcl train")
    if reason := workspace.skipped(platform):
        # The next platform starts from the model before this one: with its digest here, DVC sees when that model changes.
        earlier = workspace.model_folder(workspace.params.previous(platform))
        facts = {"model_before": store.data_digest(earlier)} if earlier.exists() else {}  # a champion's model may lie elsewhere
        with whole_folder(workspace.model_folder(platform)) as folder:  # replaces a more capable machine's model
            store.write_skipped(folder, platform, reason, **facts)
        return Skipped(platform, reason)
    method, checkpoint = named(workspace.params.distill.method), workspace.journal / "checkpoints" / platform
    with training_alone(checkpoint), workspace.timed(f"distill@{platform}"):
        before, folder = _champion_before(workspace, platform) if from_registry else _model_before(workspace, platform)
        step = _Step(workspace, platform, ChainState.load(folder), checkpoint)
        records = [platform, *(step.sources if method.reads_all else ())]
        origin = _origin(workspace, f"distill@{platform}", records, *method.sections, before=folder)
        if from_registry and read_saved_hardware(folder).vector() not in step.state.hardware:
            say(
                f"the champion of {before} was its chain's last, whose knowledge base does not learn {before}; {platform} goes on "
                "from what that had learned before"
            )
        with progress(f"distilling {before} -> {platform}", method.epochs(step) + workspace.params.train.epochs) as shown:
            curve = _Curve(shown)
            learned = method.learn(step, curve)
            alone = _own_data_only(step, shown)
        state = replace(learned.state, tasks=step.state.tasks.union(*map(workspace.recorded_tasks, records)))
        _save(workspace, platform, state, curve, checkpoint, origin, alone)
    return DistillReport(platform, before, len(step.measured), learned.share, learned.left, kept=not curve.epochs)


def _model_before(workspace: Workspace, platform: str) -> tuple[str, Path]:
    before = workspace.ran_before(platform)
    if before is None:
        raise DataError(f"no platform before {platform} in the chain could be run here; nothing to go on from")
    return before, workspace.model_folder(before)


def _champion_before(workspace: Workspace, platform: str) -> tuple[str, Path]:
    before = workspace.params.previous(platform)
    return before, registry.champion(before)[1]


@dataclass(frozen=True)
class _Step:
    """A step from one platform of the chain to the next, read from a project's folder (implements ``chain.method.Step``)."""

    workspace: Workspace
    platform: str
    state: ChainState
    checkpoint: Path

    @property
    def params(self) -> Params:
        return self.workspace.params

    @property
    def hardware(self) -> Sequence[float]:
        return read_saved_hardware(self.workspace.records_folder(self.platform)).vector()

    @property
    def is_last(self) -> bool:
        """Whether this is the chain's last platform in params.yaml, whatever this machine skips: other stages must not decide it."""
        return self.platform == self.params.chain_order[-1]

    @cached_property
    def measured(self) -> Samples:
        return self.workspace.samples(self.platform)

    @property
    def own(self) -> tuple[Samples, Samples | None]:
        return self.workspace.split_by_task(self.measured, self.params.train.validation_share)

    def labelled(self, measured: Samples) -> Samples:
        return _pseudo_labelled(self.workspace, self.platform, measured, ("tokens",))

    @cached_property
    def sources(self) -> dict[str, dict[ProgramKey, float]]:
        """``Workspace.seconds`` of each earlier platform with records here, the nearest first."""
        found, earlier = dict[str, dict[ProgramKey, float]](), self.params.previous(self.platform)
        while earlier is not None:
            found[earlier] = self.workspace.seconds(earlier)
            earlier = self.params.previous(earlier)
        return {name: seconds for name, seconds in found.items() if seconds}

    def others(self) -> tuple[Samples, list[np.ndarray], list[tuple[float, ...]]]:
        workspace, encoder, sources = self.workspace, self.workspace.encoder, self.sources.values()
        keys = [record.key for record in workspace.records(self.platform)]
        here, (nearest, *farther) = set(keys), [[key for key in there if key[:2] in encoder.texts] for there in sources] or [[]]
        others, preferred = [key for key in nearest if key not in here], [key for part in farther for key in part]
        tasks = {encoder.numbers[key[0]] for key in (*keys, *others, *preferred)}
        # What only farther platforms measured takes the place of unmeasured programs, so that training costs the same in a long chain.
        others += workspace.unlabelled_keys(sorted(tasks), self.params.train.unlabelled, here | set(others), preferred)
        seconds = [np.array([there.get(key, np.nan) for key in (*keys, *others)]) for there in sources]
        machines = [read_saved_hardware(workspace.records_folder(platform)).vector() for platform in self.sources]
        return encoder.encode(others, self.hardware), seconds, machines


def _own_data_only(step: _Step, shown: Progress) -> MambaModel | None:
    """Train the network that the chain is compared with, on this platform's records alone; None where no task has two to compare.

    It is taught like the chain's first platform, but only by the trees that read tokens.  With the default params.yaml it takes as many
    steps as the bridge with few measurements, which has half the epochs but rehearses as many programs of earlier platforms beside.
    """
    if not any_usable(step.measured):
        return None
    model = MambaModel(fit_settings(step.params))
    note = lambda epoch, loss, metrics: shown.advance(f"for comparison, own data only: loss {loss:.4f}")  # noqa: E731
    model.fit(step.labelled(step.measured), None, note, checkpoint=step.checkpoint / "scratch")
    return model


def _origin(workspace: Workspace, stage: str, platforms: Sequence[str], *sections: str, before: Path | None = None) -> dict[str, Any]:
    """Provenance of a model of the chain, with the records of ``platforms`` and the model ``before``; to be taken before its
    training, since all of it may change meanwhile.  Raises DataError where a platform's hardware row is damaged.
    """
    params, sections = workspace.params, (*sections, "collect", "measure")
    beside: dict[str, Any] = {}
    if stage == "train" and _learns_shipped(params):
        beside["shipped"] = reference.digest()
    if stage == "train" and (tunings := _tunings(workspace)):
        beside["tuned"] = {name: store.data_digest(workspace.tuned_folder(name)) for name in tunings}
    for platform in platforms:
        read_saved_hardware(workspace.records_folder(platform))  # a damaged one must not enter a provenance, even unread
    return provenance.collect(
        stage,
        {"seed": params.seed, **{name: asdict(getattr(params, name)) for name in sections}, **beside},
        {platform: workspace.records_folder(platform) for platform in platforms},
        before,
    )


def _save(
    workspace: Workspace,
    platform: str,
    state: ChainState,
    curve: _Curve,
    checkpoint: Path,
    origin: dict[str, Any],
    alone: MambaModel | None = None,
) -> None:
    """Write the model's folder: weights and hardware row, which ranking needs, provenance, learning curve and, in ``scratch/``,
    the model that it is compared with.  It appears whole or not at all.
    """
    with whole_folder(workspace.model_folder(platform)) as folder:
        state.write_into(folder)
        save_hardware(folder, read_saved_hardware(workspace.records_folder(platform)))
        write_json(folder / "curve.json", {"epochs": curve.epochs})
        provenance.write(folder, origin)
        if alone:
            alone.save(folder / SCRATCH)
        write_contents(folder)
    shutil.rmtree(checkpoint, ignore_errors=True)
