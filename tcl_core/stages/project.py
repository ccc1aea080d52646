"""Where things lie in the project's folder, and how what one stage wrote is read by the next."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tcl_core import store
from tcl_core.checked import AGAIN, damaged, read_json, write_json
from tcl_core.errors import DataError, UsageError, unknown_name
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.encode import Encoder
from tcl_core.features.groups import COLUMNS
from tcl_core.features.statements import with_statements
from tcl_core.features.states import with_states
from tcl_core.files import shown, writing
from tcl_core.locks import holder, lock_if_there
from tcl_core.models import catalogue
from tcl_core.params import Params, load_params
from tcl_core.platforms import (
    Hardware,
    copy_bandwidth_gbs,
    host_fingerprint,
    pool_target,
    read_hardware,
    read_saved_hardware,
    save_hardware as save_hardware,
    threads,
)
from tcl_core.programs.pool import Program
from tcl_core.programs.tasks import Task
from tcl_core.programs.unmeasured import draw_unmeasured
from tcl_core.progress import say
from tcl_core.records import ProgramKey, Record

DATA = Path("data")
TASKS = DATA / "programs" / "tasks"
POOL = DATA / "programs" / "pool"
STATES = DATA / "features" / "states"  # a cache: what is missing is replayed
STATEMENTS = DATA / "features" / "statements"  # likewise
REPORTS = DATA / "reports"
JOURNAL = DATA / "journal"
SET_ASIDE = DATA / "set_aside"  # records of platforms that this machine had to skip later; no stage's output
SPLITS = ("train", "held_out")
MEASURED_BY = {"records": "collect", "holdout": "holdout"}  # kind of records -> the stage of each platform that writes them
ALWAYS_JUDGED = ("mamba", "lateral-mamba", "random")  # of the catalogue: the chain's models, and chance


def records_folder(platform: str, kind: str = "records") -> Path:
    """``kind`` is records (training tasks) or holdout."""
    return DATA / kind / f"platform={platform}"


def by_stage(stage: str) -> store.Remedy:
    """What to do where the data that a stage of dvc.yaml writes is missing."""
    return store.Remedy(f"the stage {stage} writes it: dvc repro {stage}")


def by_measuring(platform: str, kind: str = "records") -> store.Remedy:
    """The same of ``records_folder``'s."""
    return by_stage(f"{MEASURED_BY[kind]}@{platform}")


def read_measured(platform: str, kind: str = "records") -> list[Record]:
    """What was measured on a platform.  Raises DataError where there are no records, or damaged ones."""
    return store.read_records(records_folder(platform, kind), by_measuring(platform, kind))


def journal_folder(platform: str, kind: str) -> Path:
    """``kind`` is collect or holdout."""
    return JOURNAL / kind / platform


def model_folder(platform: str) -> Path:
    return DATA / "models" / platform


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Project:
    """The parameters, and the data set as the stages left it.  Everything is read when first asked for."""

    params: Params

    @classmethod
    def here(cls) -> Project:
        """As params.yaml has it.  Raises UsageError for a baseline that cannot be one: now, not after hours of measuring."""
        project = cls(load_params())
        for name in project.params.baselines.models:
            if name in ALWAYS_JUDGED:
                raise UsageError(f"params.yaml: baselines.models lists '{name}', which every evaluation judges anyway; remove it")
            if name not in catalogue.CLASSES:
                raise unknown_name("model", name, catalogue.CLASSES, "baselines.models of params.yaml")
            project.check_lowering(name)
        return project

    def check_lowering(self, model: str) -> None:
        """Raise UsageError for a model that reads lowered programs, or learns from them, where the pool is not a CPU's."""
        space, asked = self.params.candidates.design_space, catalogue.model_class(model)
        if space != "cpu" and (asked.reads != "tokens" or asked.needs_states):
            raise UsageError(
                f"{model} learns from lowered programs, and only a CPU's can be lowered so far (candidates.design_space is "
                f"{space}); take a model of tokens alone, such as tlp or trees"
            )

    @cached_property
    def tasks(self) -> list[Task]:
        rows = store.read_table(TASKS / "tasks.parquet", "tasks", remedy=by_stage("tasks"))
        return [Task.from_row(row) for row in rows]

    @cached_property
    def networks(self) -> list[dict]:
        """Rows of the networks table: network, split, task_key, weight."""
        return store.read_table(TASKS / "networks.parquet", "networks", remedy=by_stage("tasks"))

    def programs(self, split: str) -> list[Program]:
        """The candidate programs of a split, train or held_out, in fixed order."""
        path = POOL / split / "programs.parquet"
        rows = store.read_table(path, "programs", remedy=by_stage("candidates"))
        if others := {row["split"] for row in rows} - {split}:
            raise damaged(path, f"its programs are of the split {shown(', '.join(sorted(others)))}", AGAIN)
        return [Program.from_row(row) for row in rows]

    @cached_property
    def encoder(self) -> Encoder:
        """Encodes programs of either split, as far as its sketches are there."""
        files = [POOL / split / "sketches.parquet" for split in SPLITS]
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
        folder = records_folder(platform, kind)
        blocks, fields = store.iter_columns(folder, COLUMNS, remedy=by_measuring(platform, kind)), read_saved_hardware(folder)
        return concatenate([self.encoder.encode_columns(block, fields.vector()) for block in blocks])

    def seconds(self, platform: str) -> dict[ProgramKey, float]:
        """Measured program -> its seconds, inf where it failed; empty where the platform has no records here, or was skipped."""
        folder = records_folder(platform)
        if store.skipped_reason(folder) is not None or not any(folder.glob("*.parquet")):
            return {}
        return {record.key: record.latency_s for record in read_measured(platform)}

    def samples_for(self, model: str, platform: str, kind: str = "records") -> Samples:
        """As ``samples``, in the rows that a model of the catalogue reads."""
        return self.samples_in(catalogue.reads(model), platform, kind)

    def samples_in(self, reads: str, platform: str, kind: str = "records") -> Samples:
        """As ``samples``, as tokens or as statements."""
        samples = self.samples(platform, kind)
        if reads == "tokens":
            return samples
        keys = [record.key for record in read_measured(platform, kind)]
        return with_statements(samples, keys, self.encoder, STATEMENTS)

    def with_states(self, samples: Samples, platform: str) -> Samples:
        """The ``samples`` of a platform's records, with the real states of some of their programs."""
        keys = [record.key for record in read_measured(platform)]
        return with_states(samples, keys, self.encoder, STATES)

    def unmeasured(
        self, tasks: Iterable[int], count: int, platform: str, reads: Sequence[str] = ("tokens", "statements")
    ) -> dict[str, Samples]:
        """Up to ``count`` programs of each of these tasks of the pool that were not measured on a platform, with its hardware
        row: as tokens and, if they are read and as far as CPUs go, whose programs can be lowered here, as statements.
        """
        folder = records_folder(platform)
        keys = self.unmeasured_keys(tasks, count, (record.key for record in read_measured(platform)))
        samples = self.encoder.encode(keys, read_saved_hardware(folder).vector())
        if "statements" not in reads or self.params.candidates.design_space != "cpu":
            return {"tokens": samples}
        return {"tokens": samples, "statements": with_statements(samples, keys, self.encoder, STATEMENTS)}

    def unmeasured_keys(self, tasks: Iterable[int], count: int, measured: Iterable[ProgramKey]) -> list[ProgramKey]:
        """Up to ``count`` programs of each of these tasks that are none of ``measured``: the pool's own, then further ones."""
        found: dict[str, list[ProgramKey]] = {self.tasks[task].key: [] for task in tasks} if count else {}
        if not found:
            return []
        known, pool = set(measured), [(p.task_key, p.sketch, p.decisions) for p in self.programs("train")]
        for key in (*pool, *self._further(pool, count)):
            mine = found.get(key[0])
            if mine is not None and len(mine) < count and key not in known:
                mine.append(key)
        return [key for keys in found.values() for key in keys]

    def _further(self, pool: Sequence[ProgramKey], count: int) -> list[ProgramKey]:
        """Up to ``count`` programs of each task beyond the pool: drawn once for all platforms, since that takes TVM a while."""
        path, p = JOURNAL / "further.json", self.params
        about = {"pool": store.data_digest(POOL / "train", by_stage("candidates")), "count": count, "seed": p.seed, "space": p.candidates.design_space}
        saved = kept(path, "its programs are drawn again")
        if {name: saved.get(name) for name in about} != about:
            with_programs = {key[0] for key in pool}
            among = [task for task in self.tasks if task.key in with_programs]
            target = pool_target(p.candidates.design_space, threads())
            drawn = draw_unmeasured(among, self.encoder.texts, pool, count, p.seed, target)
            saved = about | {"programs": [" ".join(map(str, (task, sketch, *decisions))) for task, sketch, decisions in drawn]}
            write_json(path, saved)
        texts = (text.split(" ") for text in saved["programs"])
        return [(task, int(sketch), tuple(map(int, decisions))) for task, sketch, *decisions in texts]

    def split_by_task(self, samples: Samples, share: float) -> tuple[Samples, Samples | None]:
        """Training and validation samples: a share of the tasks, drawn with the seed, is kept apart."""
        tasks = np.unique(samples.tasks)
        count = int(round(share * len(tasks)))
        if not count:
            return samples, None
        kept = np.random.default_rng(self.params.seed).choice(tasks, size=count, replace=False)
        apart = np.isin(samples.tasks, kept)
        return samples.take(~apart), samples.take(apart)

    def platforms_that_ran(self) -> list[str]:
        """The chain's platforms that this machine could measure, in chain order."""
        return [p for p in self.params.chain_order if store.skipped_reason(records_folder(p)) is None]

    def ran_before(self, platform: str) -> str:
        """The nearest earlier platform of the chain that was measured; its model is the one to go on from."""
        ran, previous = self.platforms_that_ran(), self.params.previous(platform)
        while previous is not None and previous not in ran:
            previous = self.params.previous(previous)
        if previous is None:
            raise DataError(f"no platform before {platform} in the chain could be run here; nothing to go on from")
        return previous


def bandwidth_here() -> float:
    """GB/s of this host's memory, measured once per host and kept."""
    path = JOURNAL / "hardware.json"
    saved = kept(path, "it is measured again")
    if saved.get("host") != host_fingerprint():
        saved = {"host": host_fingerprint(), "bandwidth_gbs": copy_bandwidth_gbs()}
        write_json(path, saved)
    return saved["bandwidth_gbs"]


def hardware_here(mcpu: str, given: Mapping[str, float]) -> Hardware:
    """The hardware vector of this host under ``mcpu``; its bandwidth is ``bandwidth_here``'s unless it is ``given``."""
    return read_hardware(mcpu, {"bandwidth_gbs": bandwidth_here(), **given})


@contextmanager
def measuring_alone() -> Iterator[None]:
    """Hold the machine: two measurements at once would time each other.  Waits, and says so, while another holds it.

    Raises UsageError where something else lies in the lock's place in the temporary folder.
    """
    with _alone(Path(tempfile.gettempdir()) / "tcl-measuring.lock", "measures on this machine", "set TMPDIR to a folder of your own"):
        yield


@contextmanager
def training_alone(checkpoints: Path) -> Iterator[None]:
    """Hold a stage's checkpoints, which two trainings at once would write over each other.  Waits as ``measuring_alone``."""
    with writing(checkpoints):
        checkpoints.parent.mkdir(parents=True, exist_ok=True)
    with _alone(checkpoints.with_name(f"{checkpoints.name}.lock"), "trains the same model", "see to its rights"):
        yield


@contextmanager
def _alone(path: Path, does: str, otherwise: str) -> Iterator[None]:
    """Hold the lock at ``path``; a word to the user while another holds it, and one each minute."""
    start, minutes = time.monotonic(), -1
    while not lock_if_there(path, descriptor := _open_lock(path, otherwise)):
        os.close(descriptor)
        if (passed := int((time.monotonic() - start) // 60)) > minutes:
            minutes, for_long = passed, f" ({passed} min)" if passed else ""
            say(f"{holder(path)} {does}; waiting for its end{for_long}")
        time.sleep(0.2)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path, otherwise: str) -> int:
    """To read is enough to lock, also what another user made: without O_CREAT, which the kernel refuses on another's file in
    a shared folder (fs.protected_regular), and never behind a link.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return _made_lock(path, flags)
    except OSError as error:
        raise UsageError(f"{path} cannot be locked ({os.strerror(error.errno).lower()}); remove it, or {otherwise}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path} cannot be locked (it is no file); remove it, or {otherwise}")
    return descriptor


def _made_lock(path: Path, flags: int) -> int:
    with writing(path):
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o644)  # whatever the umask: other users must be able to wait for it
    return descriptor


def learning_curve(folder: Path) -> list[dict]:
    """What each epoch of a model's training reported."""
    path = folder / "curve.json"
    try:
        return read_json(path, AGAIN)["epochs"]
    except FileNotFoundError:
        raise DataError(f"there is no {path}; {AGAIN}") from None


def kept(path: Path, remedy: str) -> dict:
    """A file that costs little to make anew: empty where there is none, and, with a word, where it is damaged."""
    try:
        return read_json(path, remedy)
    except FileNotFoundError:
        return {}
    except DataError as error:
        log.warning("%s", error)
        return {}


def judged_now(platform: str) -> dict[str, str]:
    """SHA-256 of a platform's present model and held-out records: to what an evaluation's figures belong."""
    holdout = store.data_digest(records_folder(platform, "holdout"), by_measuring(platform, "holdout"))
    return {"model": store.data_digest(model_folder(platform)), "holdout": holdout}


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Remember how long a stage took, for the summary; outside DVC's outputs, where times do not belong."""
    start = time.monotonic()
    yield
    write_json(JOURNAL / "seconds" / f"{stage}.json", {"stage": stage, "seconds": round(time.monotonic() - start, 1)})


def stage_seconds() -> dict[str, float]:
    """Stage -> seconds of its last run."""
    files = sorted((JOURNAL / "seconds").glob("*.json"), key=lambda f: f.stat().st_mtime)
    entries = {file: kept(file, "it is left out of the summary") for file in files}
    for file, entry in entries.items():
        if entry and entry.get("stage") != file.stem:
            log.warning("%s", damaged(file, "it is another stage's", "it is left out of the summary"))
    return {file.stem: entry["seconds"] for file, entry in entries.items() if entry.get("stage") == file.stem}
