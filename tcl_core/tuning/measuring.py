"""MetaSchedule's builder and runner on top of TCL's worker process.

The builder only writes the scheduled module to a file; the worker builds and runs it in one go, so that a candidate that
crashes or hangs becomes an error message.  Artifacts lie in fresh directories with a marker file, and only such
directories are ever removed: TVM's own clean-up deletes whatever folder an artifact is in.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tcl_core.compat import hand_on_errors, load_module, load_tvm, meta_schedule
from tcl_core.measure.job import Job, Outcome
from tcl_core.measure.runner import Runner
from tcl_core.programs.weights import is_large

MARKER = ".tcl-artifact"
MODULE = "module.json"


def new_artifact(module_json: str, below: str | Path | None = None) -> Path:
    """Write a scheduled module to a file in a marked directory of its own, below the system's temporary folder if None; its path."""
    folder = Path(tempfile.mkdtemp(prefix="tcl-artifact-", dir=below))
    (folder / MARKER).touch()
    (folder / MODULE).write_text(module_json)
    return folder / MODULE


def remove_artifact(path: str | Path) -> bool:
    """Remove an artifact's directory if ``new_artifact`` made it; return whether it was removed."""
    folder = Path(path).parent
    made_here = (folder / MARKER).is_file() and {p.name for p in folder.iterdir()} <= {MARKER, MODULE}
    if made_here:
        shutil.rmtree(folder)
    return made_here


def module_builder(below: str | Path | None = None) -> Any:
    """Return a MetaSchedule ``Builder`` whose artifact is the scheduled module itself.

    below  the folder for artifacts; the caller removes it after tuning, with any that a stopped run has built and not measured
    """
    tvm, ms = load_tvm(), meta_schedule()
    hand_on_errors()
    from tvm.ir.utils import derived_object

    @derived_object
    class ModuleBuilder(ms.builder.PyBuilder):  # type: ignore[name-defined]
        def build(self, build_inputs: Sequence[Any]) -> list[Any]:
            paths = [new_artifact(tvm.ir.save_json(given.mod), below) for given in build_inputs]
            return [ms.builder.BuilderResult(str(path), None) for path in paths]

    return ModuleBuilder()


def worker_runner(runner: Runner, on_outcome: Callable[[Outcome], Any] = lambda outcome: None, cold: bool = False) -> Any:
    """Return a MetaSchedule ``Runner`` that measures the artifacts of ``module_builder`` in the worker process.

    ``cold``: time programs with large weights with cold ones, as in a network of many weights (``coldness``).
    """
    ms = meta_schedule()
    hand_on_errors()
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.runner import RunnerFuture, RunnerResult

    def jobs(artifacts: Sequence[str]) -> Iterator[Job]:
        for artifact in artifacts:
            module_json = Path(artifact).read_text()
            remove_artifact(artifact)
            yield Job(task_key=artifact, module_json=module_json, cold=cold and is_large(load_module(module_json)))

    def future(outcome: Outcome) -> Any:
        failed = None if outcome.error == "ok" else f"{outcome.error}: {outcome.message}"
        result = RunnerResult(list(outcome.latencies_s) or None, failed)
        return RunnerFuture(f_done=lambda: True, f_result=lambda: result)

    @derived_object
    class WorkerRunner(ms.runner.PyRunner):  # type: ignore[name-defined]
        def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
            futures = []
            for outcome in runner.measure(jobs([str(given.artifact_path) for given in runner_inputs])):
                on_outcome(outcome)
                futures.append(future(outcome))
            return futures

    return WorkerRunner()
