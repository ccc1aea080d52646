"""Where things lie in a project's folder, and how stages read what earlier ones wrote."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import dropwhile
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from tcl_core import registry, store
from tcl_core.checked import AGAIN, damaged, read_json, write_json
from tcl_core.errors import DataError, UsageError, unknown_name
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.encode import Encoder
from tcl_core.features.groups import COLUMNS
from tcl_core.features.per_store import with_per_store
from tcl_core.features.states import with_states
from tcl_core.files import shown
from tcl_core.models import catalogue
from tcl_core.network_names import is_file_name
from tcl_core.params import PARAMS, Params, load_params
from tcl_core.platforms import pool_target, read_saved_hardware, threads
from tcl_core.programs.pool import Program
from tcl_core.programs.tasks import Task
from tcl_core.programs.unlabelled import draw_unlabelled, drawn_by
from tcl_core.records import ProgramKey, Record

SPLITS = ("train", "held_out")
MEASURED_BY = {"records": "collect", "holdout": "holdout"}  # kind of records -> the stage of each platform that writes them
ELSEWHERE = "neither a model nor held-out records of it lie here"
SCRATCH = "scratch"  # below a platform's model: the plain model trained on that platform's records only
ALWAYS_JUDGED = ("mamba", "lateral-mamba", "random")  # catalogue names: the chain's models, and the random baseline

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


def by_stage(stage: str) -> store.Remedy:
    """What to do where the data that a stage of dvc.yaml writes is missing."""
    return store.Remedy(f"the stage {stage} writes it: dvc repro {stage}")


def by_measuring(platform: str, kind: str = "records") -> store.Remedy:
    """What to do where a platform's records are missing."""
    return by_stage(f"{MEASURED_BY[kind]}@{platform}")


@dataclass(frozen=True)
class Skipped:
    """What a stage did not do for a platform, and why.

    set_aside  where records that a more capable machine had left there lie now
    """

    platform: str
    reason: str
    set_aside: Path | None = None

    def __str__(self) -> str:
        aside = f"; the records that were here are set aside in {self.set_aside}" if self.set_aside else ""
        return f"skipped: {self.reason}{aside}"


class Workspace:
    """A project's folder: where its data lie, its parameters, and what the stages wrote; read when first used.

    root    the folder that has params.yaml; no path depends on the working folder
    params  None: those of its params.yaml
    """

    def __init__(self, root: str | Path = ".", params: Params | None = None) -> None:
        self.root = Path(root)
        if params is not None:
            self.params = params

    @cached_property
    def params(self) -> Params:
        """The parameters of params.yaml.  Raises UsageError where it is missing or wrong, or lists an impossible baseline: now,
        not after hours of measuring.
        """
        params = load_params(self.root / PARAMS)
        for name in params.baselines.models:
            if name in ALWAYS_JUDGED:
                raise UsageError(f"params.yaml: baselines.models lists '{name}', which every evaluation judges anyway; remove it")
            if name not in catalogue.CLASSES:
                raise unknown_name("model", name, catalogue.CLASSES, "baselines.models of params.yaml")
            check_lowering(name, params.candidates.design_space)
        return params

    # --- where what lies ---

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def task_tables(self) -> Path:
        return self.data / "programs" / "tasks"

    @property
    def pool(self) -> Path:
        return self.data / "programs" / "pool"

    @property
    def states(self) -> Path:
        """Cache of intermediate states; missing ones are replayed."""
        return self.data / "features" / "states"

    @property
    def per_store(self) -> Path:
        """Cache of per-store features; programs without them are lowered."""
        return self.data / "features" / "per-store"

    @property
    def reports(self) -> Path:
        return self.data / "reports"

    @property
    def journal(self) -> Path:
        """Journals, checkpoints and facts of this host; no stage's output."""
        return self.data / "journal"

    @property
    def set_aside(self) -> Path:
        """Records of platforms that this machine had to skip later; no stage's output."""
        return self.data / "set_aside"

    def records_folder(self, platform: str, kind: str = "records") -> Path:
        """``kind`` is records (training tasks) or holdout."""
        return self.data / kind / f"platform={platform}"

    def journal_folder(self, platform: str, kind: str) -> Path:
        """``kind`` is collect or holdout."""
        return self.journal / kind / platform

    def model_folder(self, platform: str) -> Path:
        return self.data / "models" / platform

    def imported_folder(self, platform: str) -> Path:
        return self.data / "imported" / f"platform={platform}"

    def tuned_folder(self, platform: str) -> Path:
        """What ``tcl tune`` measured, in the layout of imported logs."""
        return self.data / "tuned" / f"platform={platform}"

    def network(self, name: str) -> str:
        """A network of params.yaml as importers take it: a name, or a file's path, which is relative to the project in params.yaml."""
        return str(self.root / name) if is_file_name(name) else name

    def check_platform(self, platform: str) -> None:
        """Raise UsageError for a name that is not in params.yaml."""
        if platform not in self.params.platforms:
            raise unknown_name("platform", platform, self.params.platforms, "params.yaml")

    # --- what the stages left there ---

    def records(self, platform: str, kind: str = "records") -> list[Record]:
        """What was measured on a platform.  Raises DataError where there are no records, or damaged ones."""
        return store.read_records(self.records_folder(platform, kind), by_measuring(platform, kind))

    def skipped(self, platform: str, kind: str = "records") -> str | None:
        """Why this machine left the platform out; None if it did not."""
        return store.skipped_reason(self.records_folder(platform, kind))

    @cached_property
    def tasks(self) -> list[Task]:
        rows = store.read_table(self.task_tables / "tasks.parquet", "tasks", remedy=by_stage("tasks"))
        return [Task.from_row(row) for row in rows]

    @cached_property
    def networks(self) -> list[dict]:
        """Rows of the networks table: network, split, task_key, weight."""
        return store.read_table(self.task_tables / "networks.parquet", "networks", remedy=by_stage("tasks"))

    def programs(self, split: str) -> list[Program]:
        """The candidate programs of a split, train or held_out, in fixed order."""
        path = self.pool / split / "programs.parquet"
        rows = store.read_table(path, "programs", remedy=by_stage("candidates"))
        if others := {row["split"] for row in rows} - {split}:
            raise damaged(path, f"its programs are of the split {shown(', '.join(sorted(others)))}", AGAIN)
        return [Program.from_row(row) for row in rows]

    @cached_property
    def encoder(self) -> Encoder:
        """Encoder for programs of the splits whose sketches have been sampled."""
        files = [self.pool / split / "sketches.parquet" for split in SPLITS]
        rows = [row for file in files if file.exists() for row in store.read_table(file, "sketches")]
        return Encoder(self.tasks, rows)

    def task_weights(self, split: str) -> dict[str, dict[int, float]]:
        """network -> {task number: weight}, the form that metrics take."""
        found: dict[str, dict[int, float]] = {}
        for row in self.networks:
            if row["split"] == split:
                found.setdefault(row["network"], {})[self.encoder.numbers[row["task_key"]]] = float(row["weight"])
        return found

    def samples(self, platform: str, kind: str = "records") -> Samples:
        """The measured programs of a platform, encoded.  Raises DataError when there are no records."""
        folder = self.records_folder(platform, kind)
        blocks, fields = store.iter_columns(folder, COLUMNS, remedy=by_measuring(platform, kind)), read_saved_hardware(folder)
        return concatenate([self.encoder.encode_columns(block, fields.vector()) for block in blocks])

    def seconds(self, platform: str) -> dict[ProgramKey, float]:
        """Measured program -> its seconds, inf where it failed; empty where the platform has no records here, or was skipped."""
        folder = self.records_folder(platform)
        if self.skipped(platform) is not None or not any(folder.glob("*.parquet")):
            return {}
        return {record.key: record.latency_s for record in self.records(platform)}

    def recorded_tasks(self, platform: str) -> frozenset[str]:
        """Keys of the tasks of a platform's records."""
        return frozenset(record.task_key for record in self.records(platform))

    def samples_for(self, model: str, platform: str, kind: str = "records") -> Samples:
        """As ``samples``, with the features that a model of the catalogue reads."""
        return self.samples_in(catalogue.reads(model), platform, kind)

    def samples_in(self, reads: str, platform: str, kind: str = "records") -> Samples:
        """As ``samples``, with the features that ``reads`` names: "tokens" or "per-store features"."""
        samples = self.samples(platform, kind)
        if reads == "tokens":
            return samples
        keys = [record.key for record in self.records(platform, kind)]
        return with_per_store(samples, keys, self.encoder, self.per_store)

    def with_states(self, samples: Samples, platform: str) -> Samples:
        """The ``samples`` of a platform's records, with the real states of some of their programs."""
        keys = [record.key for record in self.records(platform)]
        return with_states(samples, keys, self.encoder, self.states)

    def unlabelled(
        self, tasks: Iterable[int], count: int, platform: str, reads: Sequence[str] = ("tokens", "per-store features")
    ) -> dict[str, Samples]:
        """Up to ``count`` programs of each task that were not measured on a platform, with its hardware row: as tokens and, if
        ``reads`` has them and the pool is a CPU's, whose programs can be lowered here, as per-store features.
        """
        folder = self.records_folder(platform)
        keys = self.unlabelled_keys(tasks, count, (record.key for record in self.records(platform)))
        samples = self.encoder.encode(keys, read_saved_hardware(folder).vector())
        if "per-store features" not in reads or self.params.candidates.design_space != "cpu":
            return {"tokens": samples}
        return {"tokens": samples, "per-store features": with_per_store(samples, keys, self.encoder, self.per_store)}

    def unlabelled_keys(
        self, tasks: Iterable[int], count: int, measured: Iterable[ProgramKey], preferred: Iterable[ProgramKey] = ()
    ) -> list[ProgramKey]:
        """Up to ``count`` programs of each task that are not among ``measured``: ``preferred`` ones, then the pool's, then further
        ones.
        """
        found: dict[str, list[ProgramKey]] = {self.tasks[task].key: [] for task in tasks} if count else {}
        if not found:
            return []
        known, pool = set(measured), [(p.task_key, p.sketch, p.decisions) for p in self.programs("train")]
        for key in dict.fromkeys((*preferred, *pool, *self._further(pool, count))):
            mine = found.get(key[0])
            if mine is not None and len(mine) < count and key not in known:
                mine.append(key)
        return [key for keys in found.values() for key in keys]

    def _further(self, pool: Sequence[ProgramKey], count: int) -> list[ProgramKey]:
        """Up to ``count`` programs of each task beyond the pool, drawn once for all platforms, since that takes TVM a while."""
        path, p = self.journal / "further.json", self.params
        about = {
            "pool": store.data_digest(self.pool / "train", by_stage("candidates")),
            "count": count,
            "seed": p.seed,
            "space": p.candidates.design_space,
            "code": drawn_by(),
        }
        saved = kept(path, "its programs are drawn again")
        if {name: saved.get(name) for name in about} != about:
            with_programs = {key[0] for key in pool}
            among = [task for task in self.tasks if task.key in with_programs]
            target = pool_target(p.candidates.design_space, threads())
            drawn = draw_unlabelled(among, self.encoder.texts, pool, count, p.seed, target, p.candidates.lean, p.candidates.costly)
            saved = about | {"programs": [" ".join(map(str, (task, sketch, *decisions))) for task, sketch, decisions in drawn]}
            write_json(path, saved)
        texts = (text.split(" ") for text in saved["programs"])
        return [(task, int(sketch), tuple(map(int, decisions))) for task, sketch, *decisions in texts]

    def split_by_task(self, samples: Samples, share: float) -> tuple[Samples, Samples | None]:
        """Training and validation samples, None if empty: a random share of the tasks is kept apart for validation, only tasks of which
        two programs ran, and never all of these.

        The draw for a task depends on the seed and the task alone, so that platforms with other tasks keep the same ones apart: a chain
        must not be judged on one platform by what it learned on another.
        """
        tasks, ran = np.unique(samples.tasks[np.isfinite(samples.latencies_s)], return_counts=True)
        comparable = tasks[ran > 1]
        places = np.array([np.random.default_rng([self.params.seed, task]).random() for task in comparable.tolist()])
        kept = comparable[places < share]
        if len(kept) == len(comparable):
            kept = np.delete(kept, places.argmax()) if len(kept) else kept
        if not len(kept):
            return samples, None
        apart = np.isin(samples.tasks, kept)
        return samples.take(~apart), samples.take(apart)

    def platforms_that_ran(self) -> list[str]:
        """The chain's platforms that this machine could measure, in chain order."""
        return [p for p in self.params.chain_order if self.skipped(p) is None]

    def platforms_here(self) -> list[str]:
        """``platforms_that_ran`` from the first with a model or held-out records here; all of them where none has any.

        A chain that continues from a champion has its earlier platforms elsewhere.
        """
        ran = self.platforms_that_ran()
        elsewhere = lambda p: not (self.model_folder(p).exists() or self.records_folder(p, "holdout").exists())  # noqa: E731
        return list(dropwhile(elsewhere, ran)) or ran

    def left_out(self, platform: str) -> str | None:
        """Why a platform has no figures: it was skipped, or comes before ``platforms_here``; None if it has some."""
        return self.skipped(platform) or (None if platform in self.platforms_here() else ELSEWHERE)

    def ran_before(self, platform: str) -> str | None:
        """The nearest earlier platform of the chain that ran here, whose model to start from; None if none did."""
        ran, previous = self.platforms_that_ran(), self.params.previous(platform)
        while previous is not None and previous not in ran:
            previous = self.params.previous(previous)
        return previous

    def judged_now(self, platform: str) -> dict[str, str]:
        """SHA-256 of a platform's present model and held-out records, which an evaluation's figures belong to."""
        holdout = store.data_digest(self.records_folder(platform, "holdout"), by_measuring(platform, "holdout"))
        return {"model": store.data_digest(self.model_folder(platform)), "holdout": holdout}

    # --- how long stages take ---

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Record how long a stage took, for the summary; outside DVC's outputs, since times are not reproducible."""
        start = time.monotonic()
        yield
        write_json(self.journal / "seconds" / f"{stage}.json", {"stage": stage, "seconds": round(time.monotonic() - start, 1)})

    def stage_seconds(self) -> dict[str, float]:
        """Stage -> seconds of its last run."""
        files = sorted((self.journal / "seconds").glob("*.json"), key=lambda f: f.stat().st_mtime)
        entries = {file: kept(file, "it is left out of the summary") for file in files}
        for file, entry in entries.items():
            if entry and entry.get("stage") != file.stem:
                log.warning("%s", damaged(file, "it is another stage's", "it is left out of the summary"))
        return {file.stem: entry["seconds"] for file, entry in entries.items() if entry.get("stage") == file.stem}


def check_lowering(model: str, design_space: str) -> None:
    """Raise UsageError for a model that reads lowered programs, or learns from them, where the pool is not a CPU's."""
    if design_space == "cpu":
        return  # before loading the class: reading parameters must not load torch and the trees' library
    asked = catalogue.model_class(model)
    if asked.reads != "tokens" or asked.needs_states:
        raise UsageError(
            f"{model} learns from lowered programs, and only a CPU's can be lowered so far (candidates.design_space is "
            f"{design_space}); take a model of tokens alone, such as tlp or trees"
        )


def with_registry(stage: Callable[Concatenate[Workspace, P], T]) -> Callable[Concatenate[Workspace, P], T]:
    """Decorate a stage to use the workspace's local model registry, whatever the working folder is."""

    @wraps(stage)
    def run(workspace: Workspace, *given: P.args, **named: P.kwargs) -> T:
        with registry.beside(workspace.root):
            return stage(workspace, *given, **named)

    return run


def learning_curve(folder: Path) -> list[dict]:
    """What each epoch of a model's training reported.  Raises DataError where the model's folder lacks it."""
    path = folder / "curve.json"
    try:
        return read_json(path, AGAIN)["epochs"]
    except FileNotFoundError:
        raise DataError(f"there is no {path}; {AGAIN}") from None


def kept(path: Path, remedy: str) -> dict:
    """Read a JSON file that is cheap to make anew; empty if it is missing or, with a warning, damaged."""
    try:
        return read_json(path, remedy)
    except FileNotFoundError:
        return {}
    except DataError as error:
        log.warning("%s", error)
        return {}


def without_tasks(workspace: Workspace, samples: Samples, keys: Collection[str]) -> tuple[Samples, int]:
    """The samples without the tasks of these keys, and the number of tasks removed."""
    numbers = {workspace.encoder.numbers[key] for key in keys if key in workspace.encoder.numbers} & set(samples.tasks.tolist())
    return samples.take(~np.isin(samples.tasks, list(numbers))) if numbers else samples, len(numbers)
