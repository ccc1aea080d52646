"""Whole networks of kinds that no model was trained on: their tuned latencies beside PyTorch's.

    python bench/networks.py [--quick] [--cut] [--model FOLDER]

Each kind (``_kinds``) is exported to a ``.pt2`` file, cut into tasks and tuned as by ``tcl tune``, with few trials.  Its row has
the number of tasks, and the milliseconds of one inference untuned, tuned and in PyTorch, or in one sentence why it could not be
tuned.  The model is the one that comes with TCL (``tcl.pretrained``), unless --model names another one.

The table is in docs/tuning.md.  Finished rows are kept in the results file; the same command resumes a run that was stopped.
--quick: four networks.  --cut: only the numbers of tasks, of all kinds, without tuning; nothing is written.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from _tables import Quick, Results, arguments, into_document, markdown

from tcl_core import environment  # noqa: F401  (before torch is imported)

from _identity import code_identity, folder_identity
from _kinds import DENSE, KINDS, export
from search import best_platform, model_of

from tcl_core import datasets, store
from tcl_core.compat import quiet_compiler
from tcl_core.errors import TclError
from tcl_core.measure.job import Protocol, Setup
from tcl_core.models.cost_model import CostModel
from tcl_core.params import Graph
from tcl_core.platforms import host_fingerprint, read_saved_hardware
from tcl_core.programs.tasks import extract_tasks
from tcl_core.progress import progress
from tcl_core.features.batches import Samples
from tcl_core.reference import Reference, digest, shipped
from tcl_core.shipped_model import NAME
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace
from tcl_core.tuning.network import tune_network

COMMAND = "python bench/networks.py"
QUICK = ("squeezenet", "conv-1d", "lstm", "llama")


@dataclass(frozen=True)
class Size:
    """Which networks are tuned, and the number of programs measured of each."""

    networks: Sequence[str] = tuple(KINDS)
    trials: int = 24


@dataclass(frozen=True)
class Tuning:
    """What tuning needs, the same for all networks."""

    graph: Graph
    model: CostModel
    hardware: tuple[float, ...]
    setup: Setup
    trials: int
    seed: int

    def row(self, kind: str) -> dict[str, Any]:
        """The figures of a network; if it cannot be cut or tuned, those known by then and the reason."""
        row: dict[str, Any] = {"network": kind}
        with tempfile.TemporaryDirectory(prefix="tcl-networks-") as folder:
            file = export(kind, Path(folder))
            try:
                row |= cut(file, self.graph)
                tuned = tune_network(file, self.graph, self.model, self.hardware, self.setup, self.trials, self.seed)
            except TclError as error:
                return row | {"why": str(error).replace(f"{folder}/", "")}
            except Exception as error:  # TVM raises several types for what it cannot compile
                return row | {"why": f"TVM: {str(error).strip().splitlines()[-1]}"}
        figures = {name: getattr(tuned, name) for name in ("untuned_ms", "tuned_ms", "pytorch_ms", "difference", "search_s")}
        return row | figures | {"ratio": tuned.pytorch_ms / tuned.tuned_ms}


def cut(file: str, graph: Graph) -> dict[str, int]:
    """How many tasks a network has, and how often it runs one."""
    tasks = extract_tasks(file, graph)
    return {"tasks": len(tasks), "runs": sum(weight for _, weight in tasks)}


# --- figures ---


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, and ``times_pytorch``, the geometric mean of the ratios; None without any."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return {
        "times_pytorch": statistics.geometric_mean(ratios) if ratios else None,
        "networks": len(rows),
        "cut": sum("tasks" in row for row in rows),
        "tuned": sum("tuned_ms" in row for row in rows),
        "faster_than_pytorch": sum(row.get("ratio", 0.0) > 1.0 for row in rows),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("network", "tasks", "untuned ms", "tuned ms", "PyTorch ms", "times PyTorch's speed", "why not")
    return markdown(header, [_cells(row) for row in rows])


def _cells(row: Mapping[str, Any]) -> list[Any]:
    figures = (row.get(name) for name in ("untuned_ms", "tuned_ms", "pytorch_ms", "ratio"))
    return [row["network"], row.get("tasks", "-"), *("-" if value is None else f"{value:.2f}" for value in figures), row.get("why", "")]


# --- the whole comparison ---


def run(
    size: Size,
    command: str,
    folder: Path | None,
    reference: Reference,
    learned: Callable[[], Samples],
    setup: Callable[[Setup], Setup],
    force: bool = False,
) -> None:
    workspace = Workspace()
    platform = best_platform(workspace, reference)
    setting = setup(setup_of(workspace, platform))
    about = {
        "platform": platform,
        "model": str(folder or NAME),
        "data": store.data_digest(folder) if folder else digest(),
        "code": folder_identity("tuning") + code_identity(["tcl_core.models.trees", "tcl_core.programs.graph"], ["networks"]),
        "trials": size.trials,
        "protocol": setting.protocol_json(),
        "graph": asdict(workspace.params.graph),
        "host": host_fingerprint(),
    }
    results = Results("networks", lambda found: [row["network"] for row in found["rows"]])
    rows = [] if force else results.of(about).get("rows", [])
    done = {row["network"] for row in rows}
    left = [kind for kind in size.networks if kind not in done]
    hardware = read_saved_hardware(reference.folder / f"platform={platform}").vector()
    model = model_of(folder, learned)
    tuning = Tuning(workspace.params.graph, model, hardware, setting, size.trials, workspace.params.seed)
    with measuring_alone(), progress("networks", len(left)) as shown, quiet_compiler():
        for kind in left:
            rows.append(tuning.row(kind))
            results.save({"identity": about, "summary": summary(rows), "rows": rows}, command, _has_all(rows, size))
            shown.advance(kind)
    print(table(rows))
    print(f"times PyTorch's speed, geometric mean: {summary(rows)['times_pytorch'] or math.nan:.2f}")
    if results.published().get("identity") == about:
        into_document("networks", table(rows))


def _has_all(rows: Sequence[Mapping[str, Any]], size: Size) -> bool:
    return set(size.networks) <= {row["network"] for row in rows}


def cut_all(kinds: Sequence[str]) -> None:
    """Print the table with what is known without tuning."""
    graph, rows = Workspace().params.graph, []
    with tempfile.TemporaryDirectory(prefix="tcl-networks-") as folder, progress("networks", len(kinds)) as shown:
        for kind in kinds:
            try:
                rows.append({"network": kind} | cut(export(kind, Path(folder)), graph))
            except TclError as error:
                rows.append({"network": kind, "why": str(error).replace(f"{folder}/", "")})
            shown.advance(kind)
    print(table(rows))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="four networks")
    parser.add_argument("--cut", action="store_true", help="only the number of tasks of each network")
    parser.add_argument("--force", action="store_true", help="tune all anew")
    parser.add_argument("--model", type=Path, help="the folder of a model that reads tokens; else the one that comes with TCL")
    given = parser.parse_args()
    size = Size(QUICK) if given.quick else Size()
    try:
        if given.cut:
            cut_all(size.networks)
        elif given.smallest:
            run_smallest()
        else:
            options = " --quick" * given.quick + (f" --model {given.model}" if given.model else "")
            run(
                size,
                COMMAND + options,
                given.model,
                datasets.prepared(),
                lambda: shipped(Reference.pooled),
                lambda setup: setup,
                given.force,
            )
    except TclError as error:
        sys.exit(f"networks: {error}")


def run_smallest() -> None:
    from _smallest import reference

    fast = Protocol(repeats=1, max_repeats=1, min_repeat_ms=0.1, max_number=1, threads=1)
    few = reference()
    run(Size(tuple(DENSE), 2), f"{COMMAND} --smallest", None, few, few.pooled, lambda setup: replace(setup, protocol=fast))


if __name__ == "__main__":
    main()
