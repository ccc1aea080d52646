"""What a second worker is worth: in lowering programs on Dask, and in training with torchrun.

    python bench/scale_out.py [--quick]

One worker and two take turns, so that both meet the same machine; the figures are medians of the turns' ratios.  Programs are lowered
task by task, as the stages request it, and timed once each worker has loaded its compiler.  Training is timed without its first epoch,
which compiles kernels.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _tables import ROOT, Quick, arguments, into_document, markdown, save

COMMAND = "python bench/scale_out.py"
WORKERS = (1, 2)

LOWER = """
import json, sys, tempfile, time
from pathlib import Path
from prefect import flow
from flows.features import PROGRAMS, dask_workers, mapped
from flows.server import prefect_api
from tcl_core import datasets, store
from tcl_core.features.per_store import read_per_store
from tcl_core.params import Run

WARM = 8
programs, order, out = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

@flow
def lowering(programs: int) -> float:
    data = datasets.reference()
    keys = [record.key for record in store.read_records(data.folder / "platform=host-avx2")]
    with tempfile.TemporaryDirectory() as folder:
        read_per_store(keys[-WARM:], data.encoder, Path(folder), engine=mapped, chunk=1)  # each worker has loaded its compiler then
        start = time.perf_counter()
        read_per_store(keys[:programs], data.encoder, Path(folder), engine=mapped, chunk=PROGRAMS)
        return programs / (time.perf_counter() - start)

with prefect_api():
    rates = [lowering.with_options(task_runner=dask_workers(Run("dask", workers)))(programs) for workers in order]
Path(out).write_text(json.dumps(rates))
"""

TRAIN = """
import json, sys, time
from pathlib import Path
import numpy as np
import torch
from tcl_core import datasets, store
from tcl_core.learning.distributed import with_helpers
from tcl_core.learning.fit import FitSettings
from tcl_core.models.mamba import MambaModel

torch.set_num_threads(1)
programs, epochs, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
times = []

def work():
    data = datasets.reference()
    records = store.read_records(data.folder / "platform=host-avx2")[:programs]
    latencies_s = np.array([record.latency_s for record in records])
    samples = data.encoder.encode([record.key for record in records], data.hardware("host-avx2").vector(), latencies_s)
    MambaModel(FitSettings(epochs=1 + epochs, batch_size=512)).fit(samples, None, lambda *_: times.append(time.perf_counter()))
    Path(out).write_text(json.dumps(len(samples) * epochs / (times[-1] - times[0])))

with_helpers(work)
"""


def lowered_per_s(order: list[int], programs: int, scratch: Path) -> list[float]:
    out = scratch / "rates.json"
    _run([sys.executable, "-c", LOWER, str(programs), json.dumps(order), str(out)], scratch)
    return json.loads(out.read_text())


def trained_per_s(order: list[int], programs: int, epochs: int, scratch: Path) -> list[float]:
    script, out, rates = scratch / "train.py", scratch / "rate.json", []
    script.write_text(TRAIN)
    for processes in order:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        _run([sys.executable, "-m", *launcher, str(script), str(programs), str(epochs), str(out)], scratch)
        rates.append(json.loads(out.read_text()))
    return rates


def _run(command: list[str], scratch: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PREFECT_HOME": str(scratch / "prefect")}
    done = subprocess.run(command, cwd=scratch, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def compared(rates_of: Callable[[list[int], Path], list[float]], turns: int) -> dict[str, Any]:
    """Programs per second with one worker and with two, turn by turn, and the median of the turns' ratios."""
    order = [workers for turn in range(turns) for workers in (WORKERS if turn % 2 == 0 else WORKERS[::-1])]
    with tempfile.TemporaryDirectory() as scratch:
        found = list(zip(order, rates_of(order, Path(scratch)), strict=True))
    rates = {workers: [rate for each, rate in found if each == workers] for workers in WORKERS}
    ratios = [two / one for one, two in zip(*rates.values(), strict=True)]
    return {"programs_per_s": {str(workers): each for workers, each in rates.items()}, "ratios": ratios, "ratio": statistics.median(ratios)}


def table(figures: dict[str, dict]) -> str:
    rows = []
    for name, found in figures.items():
        one, two = (statistics.median(found["programs_per_s"][str(workers)]) for workers in WORKERS)
        low, high = min(found["ratios"]), max(found["ratios"])
        rows.append([name, f"{one:,.0f}", f"{two:,.0f}", f"{found['ratio']:.2f} ({low:.2f} to {high:.2f})", len(found["ratios"])])
    return markdown(["work", "one worker, programs/s", "two", "two / one (range)", "turns"], rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="fewer programs and turns")
    given = parser.parse_args()
    turns, lowered, trained, epochs = (1, 8, 32, 1) if given.smallest else (3, 512, 1024, 2) if given.quick else (5, 2048, 4096, 3)
    figures = {}
    if importlib.util.find_spec("prefect_dask"):
        figures["lowering, Dask"] = compared(lambda order, scratch: lowered_per_s(order, lowered, scratch), turns)
    figures["training, torchrun"] = compared(lambda order, scratch: trained_per_s(order, trained, epochs, scratch), turns)
    summary = {name: found["ratio"] for name, found in figures.items()}
    load = os.getloadavg()[2] / (os.cpu_count() or 1)
    save(
        "scale_out",
        {"load_per_cpu": round(load, 1), "programs": {"lowered": lowered, "trained": trained}, "summary": summary, "figures": figures},
        COMMAND + (" --quick" if given.quick else ""),
    )
    text = table(figures)
    into_document("scale_out", text)
    print(text)


if __name__ == "__main__":
    main()
