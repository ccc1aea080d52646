"""The data set at scale: ten million records written, scanned and encoded, and whole tuning logs imported.

    python bench/store.py [--quick] [--logs ../shared/bench]

The records are of real sketches of real tasks with distinct drawn decisions (repeated rows would compress to nothing);
their latencies are drawn from real records, those measured here or else those of the logs, with the measured noise
between repeats.  Each phase runs in a process of its own, whose peak memory is given.  --quick: a million.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _tables import ROOT, Quick, arguments, into_document, markdown, save

from tcl_core import environment, store  # noqa: F401  (before torch is imported)
from tcl_core.errors import DataError
from tcl_core.features.encode import Encoder
from tcl_core.features.groups import COLUMNS
from tcl_core.platforms import Hardware, host_fingerprint
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.sketches import DesignSpace, Sketch, trace_to_json
from tcl_core.programs.tasks import EXTRACTION_TARGET, Task, extract_tasks
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace
from tcl_core.store import Coded, Columns, Ragged

COMMAND = "python bench/store.py"
NETWORK = "resnet-18"  # its tasks are used where no pool has been made
TASKS, BATCH = 12, 50_000
LARGE = 10**6  # programs that a sketch must have, so that draws hardly repeat
ENCODED = 500_000  # of the records, for their rate is the same for all
PROTOCOL = json.dumps({"repeats": 3, "min_repeat_ms": 10.0, "max_number": 200, "target": EXTRACTION_TARGET})


@dataclass(frozen=True)
class Source:
    """What records are drawn from; plain data, for it goes to other processes.

    sketches   without their traces, which are in ``rows``, those of the sketches table
    medians_s  (n,) latencies of programs;  repeats: (m, 3) repeats of a program / their median
    """

    tasks: list[Task]
    sketches: list[Sketch]
    rows: list[dict[str, Any]]
    medians_s: np.ndarray
    repeats: np.ndarray


def real_tasks() -> list[Task]:
    """Tasks of the project, or of ``NETWORK`` if it has none."""
    try:
        return Workspace().tasks
    except DataError:
        return [task for task, _ in extract_tasks(NETWORK, PREPARED)]


def real_sketches(candidates: Sequence[Task], count: int = TASKS) -> tuple[list[Task], list[Sketch], list[dict[str, Any]]]:
    """The first ``count`` tasks with sketches of ``LARGE`` or more programs; these sketches; their rows."""
    tasks, sketches = [], []
    for task in candidates:
        found = DesignSpace(task.key, task.module(), EXTRACTION_TARGET).sketches()
        large = [s for s in found if np.prod([float(len(slot.choices)) for slot in s.slots]) >= LARGE]
        tasks += [task] if large else []
        sketches += large
        if len(tasks) == count:
            break
    rows = [{"task_key": s.task_key, "sketch_id": s.index, "trace_json": trace_to_json(s.trace)} for s in sketches]
    return tasks, [replace(sketch, trace=None) for sketch in sketches], rows


def real_latencies(logs: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Origin of the latencies, (n,) medians in seconds, and (m, 3) repeats / median of programs with three repeats.

    Raises DataError where there are neither measured records nor the log.
    """
    measured = [path.parent for path in sorted((Workspace().data / "records").glob("platform=*/records.parquet"))]
    if measured:
        return f"measured here ({len(measured)} platforms)", *_latencies(measured)
    log = logs / "autotvm" / "ryzen-3700x" / "random.log.gz"
    if not log.exists():
        raise DataError(f"there are neither measured records nor {log}; run tcl collect, or give the logs with --logs")
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Workspace(scratch)
        exchange.import_logs(workspace, [log], "bench")
        found = _latencies([workspace.imported_folder("bench") / "records"])
    return f"imported from {log.parent.name}/{log.name}", *found


def _latencies(folders: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    medians, repeats = [], []
    for folder in folders:
        for block in store.iter_columns(folder, ["latencies_s"]):
            values, offsets = block["latencies_s"]
            median = store.median_latency_s(block["latencies_s"])
            three = np.flatnonzero(np.diff(offsets) == 3)
            medians.append(median[np.isfinite(median)])
            repeats.append(values[offsets[three, None] + np.arange(3)] / median[three, None])
    return np.concatenate(medians), np.concatenate(repeats)


def drawn_records(source: Source, count: int) -> Iterator[Columns]:
    """``count`` records in the order of a collection: tasks alternate at random."""
    rng = np.random.default_rng(0)
    keys = sorted({sketch.task_key for sketch in source.sketches})
    next_id, clock = np.zeros(len(keys), dtype=np.int64), 1.75e15
    for start in range(0, count, BATCH):
        n = min(BATCH, count - start)
        which = rng.integers(len(source.sketches), size=n)
        codes = np.array([keys.index(sketch.task_key) for sketch in source.sketches], dtype=np.int32)[which]
        taken = clock + np.cumsum(rng.uniform(0.2e6, 0.6e6, n))
        clock = taken[-1]
        yield {
            "task_key": Coded(codes, keys),
            "sketch_id": np.array([sketch.index for sketch in source.sketches], dtype=np.int32)[which],
            "program_id": _numbered(codes, next_id),
            "decisions": _drawn(source.sketches, which, rng),
            "latencies_s": _timed(source, n, rng),
            "measured_at": taken.astype("datetime64[us]"),
            "round": np.full(n, start * 10 // count, dtype=np.int32),
            **{name: _constant(text, n) for name, text in CONSTANTS.items()},
            "checked": rng.random(n) < 0.05,
            "disturbed": np.zeros(n, dtype=bool),
        }


CONSTANTS = {
    "error": "ok",
    "message": "",
    "protocol": PROTOCOL,
    "host": host_fingerprint(),
    "tvm_version": "0.27.0.post1",
}


def _constant(text: str, count: int) -> Coded:
    return Coded(np.zeros(count, dtype=np.int32), [text])


def _numbered(codes: np.ndarray, next_id: np.ndarray) -> np.ndarray:
    """(n,) consecutive numbers within each record's task, from ``next_id`` (tasks,), which is advanced."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(next_id))
    numbers = np.empty(len(codes), dtype=np.int32)
    numbers[order] = np.concatenate([start + np.arange(n) for start, n in zip(next_id, counts, strict=True)])
    next_id += counts
    return numbers


def _drawn(sketches: Sequence[Sketch], which: np.ndarray, rng: np.random.Generator) -> Ragged:
    widths = np.array([sketch.width for sketch in sketches])[which]
    offsets = np.concatenate([[0], np.cumsum(widths)])
    values = np.empty(offsets[-1], dtype=np.int32)
    for number, sketch in enumerate(sketches):
        rows = np.flatnonzero(which == number)
        values[offsets[rows, None] + np.arange(sketch.width)] = sketch.sample(len(rows), rng)
    return Ragged(values, offsets)


def _timed(source: Source, count: int, rng: np.random.Generator) -> Ragged:
    medians = rng.choice(source.medians_s, count) * rng.uniform(0.98, 1.02, count)  # else the same values would recur
    values = medians[:, None] * source.repeats[rng.integers(len(source.repeats), size=count)]
    return Ragged(values.astype(np.float32).ravel(), np.arange(count + 1) * 3)


# --- phases: each in a process of its own ---


def write(source: Source, folder: Path, count: int) -> dict[str, float]:
    records = drawn_records(source, count)
    start = time.perf_counter()
    drawing = 0.0

    def batches() -> Iterator[Columns]:
        nonlocal drawing
        before = time.perf_counter()
        for batch in records:
            drawing += time.perf_counter() - before
            yield batch
            before = time.perf_counter()

    path = folder / "records.parquet"
    written = store.write_record_columns(path, batches())
    seconds = time.perf_counter() - start - drawing  # drawing the records is no part of writing them
    return {"write_records_per_s": written / seconds, "bytes_per_record": path.stat().st_size / written}


def scan(folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    count, first = 0, None
    for block in store.iter_columns(folder):
        first = first or time.perf_counter() - start
        count += len(block["program_id"])
    return {"scan_records_per_s": count / (time.perf_counter() - start), "first_batch_s": first}


def scan_for_training(folder: Path) -> dict[str, float]:
    start = time.perf_counter()
    count = sum(len(block["sketch_id"]) for block in store.iter_columns(folder, COLUMNS))
    return {"training_columns_per_s": count / (time.perf_counter() - start)}


def encode(source: Source, folder: Path) -> dict[str, float]:
    encoder, hardware = Encoder(source.tasks, source.rows), Hardware(cores=2.0).vector()
    for task in source.tasks:
        encoder.workload(task.key)
    start, count = time.perf_counter(), 0
    for block in store.iter_columns(folder, COLUMNS, rows=8_192):
        count += len(encoder.encode_columns(block, hardware))
        if count >= ENCODED:
            break
    return {"encoded_programs_per_s": count / (time.perf_counter() - start)}


def import_all(logs: Path) -> dict[str, float]:
    """Import every log below ``logs``; each folder of logs, and each log that lies in its dialect's folder, is a platform."""
    files = sorted(logs.rglob("*.log.gz"))
    start, lines, records = time.perf_counter(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Workspace(scratch)
        for platform, paths in _by_platform(files, logs).items():
            exchange.import_logs(workspace, paths, platform)
            for report in (workspace.imported_folder(platform) / "reports").glob("*.json"):
                said = json.loads(report.read_text())
                lines, records = lines + said["lines"], records + said["records"]
        size = sum(path.stat().st_size for path in workspace.data.rglob("*.parquet"))
    seconds = time.perf_counter() - start
    return {
        "import_lines": lines,
        "import_records": records,
        "import_s": seconds,
        "import_bytes_per_record": size / records,
    }


def _by_platform(files: Sequence[Path], logs: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in files:
        parts = path.relative_to(logs).parts
        found.setdefault(parts[1] if len(parts) > 2 else path.name.split(".")[0], []).append(path)
    return found


def phase(work: Callable[..., dict[str, float]], *arguments: Any) -> tuple[dict[str, float], float]:
    """Run a phase in a process of its own; its figures, and its peak memory in MB."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., dict[str, float]], arguments: Sequence[Any]) -> tuple[dict[str, float], float]:
    found = work(*arguments)
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent, too
    return found, int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1e3


def smallest() -> tuple[Path, int, Source, str]:
    """A folder without logs, the number of records, their source (a task and latencies of the reference data), and its origin."""
    from _smallest import reference, scratch

    data = reference()
    drawn = real_sketches(list(data.encoder.tasks.values()), 1)
    places = sorted(data.folder.glob("platform=*"))
    return scratch() / "logs", 2_000, Source(*drawn, *_latencies(places)), "of the reference data"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="a million records instead of ten")
    parser.add_argument("--logs", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of tuning logs to import")
    given = parser.parse_args()
    logs, count = given.logs.resolve(), 10**6 if given.quick else 10**7
    if given.smallest:
        logs, count, source, origin = smallest()
    else:
        origin, medians, repeats = real_latencies(logs)
        source = Source(*real_sketches(real_tasks()), medians, repeats)
    found: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "platform=bench"
        phases = [
            (write, (source, folder, count)),
            (scan, (folder,)),
            (scan_for_training, (folder,)),
            (encode, (source, folder)),
        ]
        for work, given in phases:
            said, found[f"{work.__name__}_peak_mb"] = phase(work, *given)
            found |= said
    found |= imported(logs)
    text = table(count, found)
    about = {"records": count, "tasks": len(source.tasks), "sketches": len(source.sketches), "latencies": origin}
    save("store", {"summary": summary(found), **about, "figures": found}, COMMAND)
    drawn = f"Distinct programs of {len(source.sketches)} sketches of {len(source.tasks)} tasks; latencies {origin}."
    into_document("store", f"{text}\n\n{drawn}")
    print(text)


def imported(logs: Path) -> dict[str, float | None]:
    if not logs.is_dir():
        print(f"there is no {logs}; importing logs is left out (give their folder with --logs)")
        return dict.fromkeys(("import_lines", "import_records", "import_s", "import_bytes_per_record", "import_peak_mb"))
    said, peak_mb = phase(import_all, logs)
    return {**said, "import_peak_mb": peak_mb}


def summary(found: dict[str, float | None]) -> dict[str, float | None]:
    keys = ("bytes_per_record", "scan_records_per_s", "import_lines", "import_s", "import_peak_mb")
    peaks = [found[f"{name}_peak_mb"] for name in ("write", "scan", "scan_for_training")]
    return {**{key: found[key] for key in keys}, "peak_mb": max(peaks)}


def table(count: int, found: dict[str, float | None]) -> str:
    rows = [
        (f"write {count:,} records, sorted", "write_records_per_s", "records/s", "write"),
        ("scan, all columns", "scan_records_per_s", "records/s", "scan"),
        ("scan, what training reads", "training_columns_per_s", "records/s", "scan_for_training"),
        ("read and encode to tokens", "encoded_programs_per_s", "programs/s", "encode"),
    ]
    lines = [[what, f"{found[key]:,.0f} {unit}", _megabytes(found, name)] for what, key, unit, name in rows]
    lines += [["on disk", f"{found['bytes_per_record']:.1f} bytes/record", ""]]
    lines += [["first batch after", f"{found['first_batch_s']:.2f} s", ""]]
    if found["import_s"]:
        what = f"import {found['import_lines']:,} lines of logs in {found['import_s']:.1f} s"
        rate = f"{found['import_lines'] / found['import_s']:,.0f} lines/s"
        lines.append([what, rate, _megabytes(found, "import")])
    return markdown(["", "", "peak memory"], lines)


def _megabytes(found: dict[str, float | None], name: str) -> str:
    return f"{found[f'{name}_peak_mb']:.0f} MB"


if __name__ == "__main__":
    main()
