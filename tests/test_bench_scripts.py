"""Every comparison runs to its end in its smallest form, and leaves the figures that its tables are made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _tables import APART

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600  # of a script, which takes some seconds on a quiet machine
# Script -> dotted paths of its result that its tables are made of; * stands for every key or number of which there must be some.
TABLES = {
    "ablations": ("runs.default.*.*", "runs.two Mamba blocks.*.*", "runs.no network: trees on per-store features.*.*", "epochs"),
    "accuracy": (
        *(f"summary.host-avx512.{model}.{key}" for model in ("random", "mamba", "tcl") for key in ("pairs", "u16", "top1", "parameters")),
        *(f"runs.*.figures.{key}" for key in ("top1", "top5", "pairs", "u16", "spearman", "of_tasks", "train_s", "programs_per_s")),
        *(f"calibration.*.{key}" for key in ("platform", "model", "members", "ece", "sharp")),
        *(f"compared.*.{key}" for key in ("platform", "model", "seeds", "tasks", "pairs", "pairs_ours_less", "u16_ours_less")),
    ),
    "blocks": tuple(f"summary.*.*.{key}" for key in ("programs", "tasks", "factor")),
    "collect": (
        *(f"figures.rates.*.TCL.{key}" for key in ("median", "slowest", "fastest", "start_s", "with_start", "builds_alone")),
        *(f"figures.shares.*.TVM.{key}" for key in ("build", "time", "sentinel", "rest", "retimed", "disturbed")),
        *(f"figures.agreement.*.{key}" for key in ("programs", "spearman", "spearman_within_tasks", "median_ratio")),
        "summary.ratio_batch3",  # of the smallest form
    ),
    "costly": tuple(
        f"summary.{data}.{row}.{figure}"
        for data in ("prepared", "registers")
        for row in ("all of them", "a third", "none", "a third, longer")
        for figure in ("pairs", "u16", "pairs_less_all")
    ),
    "faults": ("parts.kills.trials", "parts.kills.outcomes.*", "summary.kills"),
    "gate": tuple(f"summary.{rule}.{key}" for rule in ("both 95%", "together 90%", "all") for key in ("better in both", "u16_gained")),
    "layouts": (*(f"summary.{kind}" for kind in ("3x3", "depthwise")), "units.*.best_s.NCHW", "units.*.best_s.NHWC"),
    "lean": tuple(f"summary.*.{key}" for key in ("pairs", "u16", "found", "pairs_less_random", "u16_less_random", "found_less_random")),
    "model_speed": ("programs_per_s.*.*.train", "programs_per_s.*.*.infer", "cold_start_s.mamba.*.first", "cold_start_s.mamba.*.later"),
    "more_tasks": tuple(
        f"summary.{pool}.{row}.{figure}"
        for pool in ("uniform", "leaning")
        for row in ("drawn", "+ others", "+ variants", "fewer")
        for figure in ("pairs", "u16", "pairs_less_drawn")
    ),
    "networks": (
        *(f"summary.{key}" for key in ("networks", "cut", "tuned", "faster_than_pytorch")),
        *(f"rows.*.{key}" for key in ("network", "tasks", "untuned_ms", "tuned_ms", "pytorch_ms", "ratio")),
    ),
    "near": tuple(
        f"summary.*.{row}.{figure}"
        for row in ("drawn", "+ draws here", "+ searched alone", "+ both", "+ elsewhere", "+ all")
        for figure in ("all", "near", "pairs_less_base")
    ),
    "repeats": tuple(f"summary.{figure}" for figure in ("same processes", "new processes", "all, the data", "scatter", "spread")),
    "pipeline": (),  # tests/test_end_to_end.py shows a run
    "reference": (),
    "searched": (),
    "samplers": tuple(f"summary.*.*.*.{key}" for key in ("pairs", "u16", "found", "labels", "pairs_less_random", "u16_less_random")),
    "pools": tuple(
        f"summary.{pool}.{row}.{figure}"
        for pool in ("uniform", "leaning")
        for row in ("uniform", "leaning", "half each", "both")
        for figure in ("pairs", "u16", "pairs_less_uniform")
    ),
    "scale": (
        *(f"rates.{key}" for key in ("build_core_s", "device_s", "learned_per_s", "scored_per_s", "record_bytes", "line_bytes")),
        *(
            f"fleets.*.{key}"
            for key in ("collected_h", "ended_h", "parts_h.*", "parquet_gb", "pool_tokens_gb", "added.core_h", "added.price")
        ),
        "compared.*",
    ),
    "scale_out": tuple(f"figures.training, torchrun.{key}" for key in ("programs_per_s.*.*", "ratio")),
    "search": (
        *(f"summary.{key}" for key in ("candidates_x", "best_vs_stock", "best_vs_random", "scratch_vs_stock", "scratch_vs_random")),
        *(f"rows.*.{key}" for key in ("operator", "units", "best_vs_stock", "best_vs_random")),
        *(f"units.*.{key}" for key in ("task", "seed", "best_s", "candidates.*", "search_s.*")),
    ),
    "shipped": tuple(
        f"summary.{platform}.{row}.{learner}.{figure}"
        for platform in ("host-avx2", "all")
        for row in ("own", "Xeon", "Xeon, EPYC", "Xeon, EPYC, and own")
        for learner in ("trees", "network")
        for figure in ("pairs", "u16", "pairs_less_own")
    ),
    "store": tuple(
        f"figures.{key}"
        for key in ("write_records_per_s", "scan_records_per_s", "training_columns_per_s", "encoded_programs_per_s", "write_peak_mb")
    ),
    "transfer": (
        *(f"summary.avx2>avx512.0.zero-shot.{key}" for key in ("pairs", "u16", "top1", "forgetting")),
        *(
            f"summary.avx2>avx512.12.{method}.{key}"
            for method in ("own", "own-taught", "fine-tuned", "ckd", "ckd-mended", "replay", "mtl-tlp", "pooled", "bridge-alone", "ours")
            for key in ("pairs", "u16", "top1", "forgetting", "pairs_less_zero_shot", "pairs_less_ours", "steps", "variant")
        ),
        *(f"summary.sse42>avx2>avx512.12.{method}.on.sse42" for method in ("ours", "ckd", "mtl-tlp", "own")),
        *(
            f"units.*.{key}"
            for key in ("unit", "figures.tasks", "figures.pairs.*", "figures.u16.*", "figures.top1.*", "figures.forgetting.*")
        ),
    ),
    "tune": (
        *(f"summary.*.{key}" for key in ("ours_ms", "random_ms", "scratch_ms", "systems_ms.*", "equal_trials_random_x")),
        *(f"parts.*.units.*.{key}" for key in ("tasks", "trials", "seconds", "failed", "curve")),
        *(f"parts.*.compared.*.{key}" for key in ("network", "systems_ms.*", "differences.*", "rounds_ms.*")),
    ),
    "worker_memory": tuple(f"figures.*.{key}" for key in ("programs", "failed", "resident_mib.*", "workers.*")),
}
FILES = {
    "tune": ("tune_curves.png",),
    "accuracy": ("accuracy_curve.png",),
    "searched": tuple(f"searched/{name}.parquet" for name in ("tasks", "networks", "sketches", "programs", "platform=host-avx2/records")),
    "reference": tuple(
        f"reference/{name}.parquet" for name in ("tasks", "networks", "sketches", "programs", "platform=host-sse42/records")
    ),
}


def found(result: object, path: str) -> list[object]:
    """What lies at a dotted path; raises KeyError, or IndexError for an empty list, where nothing does."""
    key, _, rest = path.partition(".")
    if not key:
        return [result]
    if key != "*":
        return found(result[key], rest)
    parts = list(result.values() if isinstance(result, dict) else result)
    assert parts, f"nothing at * of {path}"
    return [value for part in parts for value in found(part, rest)]


@pytest.fixture(scope="module")
def before():
    return documents()


@pytest.fixture(scope="module")
def runs(request, before, tmp_path_factory):
    """Script -> how it ended, and where its results are; two run at a time, for most of what they do takes one processor."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    tested = [item.callspec.params["script"] for item in here]
    with ThreadPoolExecutor(2) as pool:
        yield {script: pool.submit(run_smallest, script, tmp_path_factory.mktemp(script)) for script in tested}
        pool.shutdown(cancel_futures=True)  # what nobody waits for any more, after a failure with -x


def documents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("bench/results/*")]}


def run_smallest(script: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    return run(script, folder, "--smallest"), folder


def has_smallest_form(script: str) -> bool:
    source = (ROOT / "bench" / f"{script}.py").read_text()
    return any(text in source for text in ("arguments(__doc__)", "begin(__doc__", "--smallest"))


def test_no_comparison_is_left_out(tmp_path):
    assert {path.stem for path in (ROOT / "bench").glob("[!_]*.py")} == set(TABLES)
    for script in TABLES:
        if not has_smallest_form(script):
            assert "--quick" in run(script, tmp_path, "--help").stdout


@pytest.mark.parametrize("script", [name for name in TABLES if has_smallest_form(name)])
def test_the_smallest_form_leaves_all_that_its_tables_need(script, runs):
    done, folder = runs[script].result()
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    if TABLES[script]:
        result = json.loads((folder / f"{script}.json").read_text())
        empty = [path for path in TABLES[script] if None in found(result, path)]
        assert not empty, f"{empty}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "| --- |" in done.stdout
    assert all((folder / name).stat().st_size for name in FILES.get(script, ()))


def test_no_document_and_no_result_is_written(runs, before):
    if not runs:
        pytest.skip("no script was chosen with it")
    for done in runs.values():
        done.result()
    assert documents() == before


def run(script: str, results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"bench/{script}.py", *arguments]
    with tempfile.TemporaryDirectory(prefix="tcl-") as own:  # where the lock of measuring is: what is timed here means nothing
        environment = os.environ | {APART: str(results), "PYTHONPATH": str(ROOT), "TMPDIR": own}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
