"""The state of a project, so that two can be compared: files, records, and the registry's content.

Times differ between otherwise equal runs: files that hold nothing but times are left out, and on request the latencies
of measurements.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tcl_core import store
from tcl_core.errors import TclError
from tcl_core.journal import iter_journal
from tcl_core.records import Record

TIMES = ("seconds", "features")  # folders of times, and of caches, which may hold more or less
LOCKS = ("lock", ".lock")
DVCS = re.compile(r"\.[\w-]{22}\.tmp")  # temporary files of a killed DVC; .dvcignore names them, and no command of ours reads them
ASIDE = (".tcl-*.tmp", ".*.new", ".*.old", "*.lock.tmp")
MEASURED = (
    "rounds.jsonl",
    "tuned.json",
    "summary.json",
    "report.json",
    "report.html",
    "hardware.json",
    "reports/collect/",
)  # whose presence alone counts


def state(project: Path, measured: bool = False) -> dict[str, str]:
    """Name -> digest of everything that should be the same after the same commands.

    measured  something was measured anew: records count by their programs, not by their bytes
    """
    found = {str(path): _digest(project, path, measured) for path in files(project)}
    return found | {f"registry: {name}": value for name, value in registry(project).items()}


def files(project: Path) -> list[Path]:
    """The files below data/ that count, relative to the project."""
    every = (path for path in (project / "data").rglob("*") if path.is_file() or path.is_symlink())
    relative = (path.relative_to(project) for path in every)
    return sorted(p for p in relative if not (set(TIMES) & set(p.parts) or p.name in LOCKS or DVCS.fullmatch(p.name)))


def _digest(project: Path, path: Path, measured: bool) -> str:
    if measured and any(path.match(f"*{name}") or name in str(path) for name in MEASURED):
        return "there"
    if measured and "imported" not in path.parts and path.name in ("records.jsonl", "records.parquet"):
        with suppress(TclError):
            return programs_digest(project / path)
    return hashlib.sha256(plain(project, (project / path).read_bytes())).hexdigest()[:16]


def plain(project: Path, content: bytes) -> bytes:
    """The content with the lane's name replaced, in which alone two copies' paths differ."""
    return content.replace(project.parent.name.encode(), b"lane")


def programs_digest(path: Path) -> str:
    """Digest of the set of recorded programs, regardless of repeated and disturbed records."""
    return hashlib.sha256(repr(sorted({record.key for record in _records(path)})).encode()).hexdigest()[:16]


def lasting(path: Path) -> Counter:
    """Program -> number of its records, without a journal's disturbed ones, which are measured again."""
    of_journal = path.suffix == ".jsonl"
    return Counter(record.key for record in _records(path) if not (of_journal and record.disturbed))


def _records(path: Path) -> Iterable[Record]:
    return iter_journal(path.parent) if path.suffix == ".jsonl" else store.read_records(path.parent)


def doubled(project: Path) -> int:
    """Number of surplus records of programs, in journals and records, and of surplus versions in the registry."""
    twice = 0
    for path in files(project):
        if path.name in ("records.jsonl", "records.parquet") and "imported" not in path.parts:
            with suppress(TclError):
                twice += sum(count - 1 for count in lasting(project / path).values())
    keys = Counter(rows(project, "SELECT name, value FROM model_version_tags WHERE key = 'run_key'"))
    return twice + sum(count - 1 for count in keys.values())


def rows(project: Path, query: str) -> list[tuple]:
    """Sorted rows of a query of the registry's database; none where the database or a table is not there yet."""
    path = project / "mlflow.db"
    if not path.exists():
        return []
    with suppress(sqlite3.OperationalError):
        connection = sqlite3.connect(path, timeout=5)
        try:
            return sorted(connection.execute(query).fetchall(), key=repr)
        finally:
            connection.close()
    return []


def registry(project: Path) -> dict[str, str]:
    """Name -> value: digests of the versions' models, the versions' run keys and promotions, and aliases."""
    found = {}
    sources = rows(project, "SELECT v.name, v.version, m.artifact_location FROM model_versions v "
                            "LEFT JOIN logged_models m ON v.source = 'models:/' || m.model_id")  # fmt: skip
    for name, version, location in sources:
        folder = Path(str(location).removeprefix("file://"))
        models = sorted(folder.glob("artifacts/*/*"))
        bytes_of = ((path.name, path.read_bytes()) for path in models if path.is_file())
        found[f"{name} {version}"] = hashlib.sha256(repr(list(bytes_of)).encode()).hexdigest()[:16]
    for name, version, key, value in rows(project, "SELECT name, version, key, value FROM model_version_tags"):
        if key in ("run_key", "promotion"):
            found[f"{name} {version} {key}"] = str(value)
    for name, alias, version in rows(project, "SELECT name, alias, version FROM registered_model_aliases"):
        found[f"{name} {alias}"] = str(version)
    return found


def leftovers(project: Path) -> list[str]:
    """What dead processes left: temporary files, runs that never finished or have no version, models without a version."""
    aside = [path for pattern in ASIDE for path in project.rglob(pattern) if not {".git", ".dvc"} & set(path.parts)]
    running = rows(project, "SELECT run_uuid, status FROM runs WHERE status NOT IN ('FINISHED', 'FAILED', 'KILLED')")
    orphans = rows(project, "SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active' "
                            "AND run_uuid NOT IN (SELECT run_id FROM model_versions)")  # fmt: skip
    models = {path.name for path in project.glob("mlruns/*/models/*")} | {p.name for p in project.glob("mlruns/models/*")}
    known = {str(source).rpartition("/")[2] for (source,) in rows(project, "SELECT source FROM model_versions")}
    found = [f"file {path.relative_to(project)}" for path in aside]
    found += [f"run {run} is {status}" for run, status in running] + [f"run {run} has no version" for (run,) in orphans]
    return found + [f"folder of model {name}, which is no version" for name in sorted(models - known)]


def differences(undisturbed: dict[str, str], now: dict[str, str]) -> list[str]:
    """A line for each name that is gone, new or changed compared to an undisturbed run."""
    gone = [f"{name} is gone" for name in sorted(undisturbed.keys() - now.keys())]
    new = [f"{name} is new" for name in sorted(now.keys() - undisturbed.keys())]
    both = sorted(undisturbed.keys() & now.keys())
    return gone + new + [f"{name} changed" for name in both if undisturbed[name] != now[name]]


def processes_left(lane: Path, patience_s: float = 20.0) -> int:
    """Number of processes with the lane's temporary folder that are still alive after ``patience_s``; they are killed."""
    deadline = time.monotonic() + patience_s
    while (left := list(_processes(lane))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return len(left)


def _processes(lane: Path) -> Iterator[psutil.Process]:
    """The lane's processes, by their environment, except its server, which belongs to no trial, and its forks, which are waited for."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(lane / "tmp"):
                if not any(word.endswith("_lanes.py") for word in process.cmdline()):
                    yield process
