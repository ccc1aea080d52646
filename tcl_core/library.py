"""Uses of a trained model outside a project: ranking programs, tuning a network, transfer to other hardware.

These are the public functions of ``tcl_core`` that combine several modules; each takes plain arguments where a stage would
read params.yaml.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import store
from tcl_core.compat import TVM_VERSION, make_target, structural_key
from tcl_core.errors import UsageError, check_seed, naming_extras
from tcl_core.evaluation.metrics import pairwise_accuracy, picks, spearman, subset_top_1
from tcl_core.features.batches import Samples
from tcl_core.files import shown, user_cache
from tcl_core.measure.job import Protocol, Setup
from tcl_core.models.mamba import MambaModel
from tcl_core.platforms import Hardware, copy_bandwidth_gbs, host_fingerprint, read_hardware, target_of, vector_of, why_not, widest_cpu
from tcl_core.platforms import threads as usable_threads
from tcl_core.programs.tasks import as_task, has_blocks, named, operator_type
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import log_file, open_log
from tcl_core.stages.exchange import Refused
from tcl_core.stages.predict import Scored, check_reads_tokens, score_log
from tcl_core.trained import Model, Trained, trained_of

log = logging.getLogger(__name__)
DEFAULT_TRIALS = 200  # as params.yaml's tune.trials

# --- ranking ---


@naming_extras()
def rank(model: Model, programs: Any, *, module: Any = None, target: str = "") -> Scored:
    """Score and rank programs; ``rank(...).table(top=3)`` has the best of each task as rows.

    programs  the path of a tuning log, gzip or plain, or of a database's folder (docs/data.md lists the tuners); a MetaSchedule
              ``Database``; TVM schedules or traces of one ``module``; or ``Samples``
    module    the ``PrimFunc`` or ``IRModule`` of schedules and traces
    target    keep only a path's lines or a ``Database``'s records whose target contains this text

    Scores compare only within a task.  A ``Database``'s records of several targets are ranked as several tasks; of a path only
    programs for the first one's target are ranked.  Lines left out and a model of unknown hardware are warned about.  Nothing is
    written, and at most progress and warnings are printed, on standard error.
    Raises as ``load``, DataError for a file that is no log, has no program or does not fit the model, UsageError for arguments
    that do not fit the programs and for a model that reads what ``programs`` do not tell.
    """
    trained = trained_of(model)
    database = hasattr(programs, "get_all_tuning_records")
    if target and not (database or isinstance(programs, str | Path)):
        raise UsageError("target= keeps lines of a log and records of a database, and these programs are neither; leave it out")
    if module is not None and (database or isinstance(programs, Samples | str | Path)):
        raise UsageError("module= is for schedules and traces; these programs tell their own: leave it out")
    if isinstance(programs, Samples):
        return _rank_samples(trained, programs)
    check_reads_tokens(trained.reads, trained.origin)
    if trained.hardware is None:
        log.warning(
            "%s does not say which hardware it is of: it is told none; where it learned with a hardware row, give tcl.Trained(model, hardware)",
            trained.origin,
        )
    if isinstance(programs, str | Path):
        opened = open_log(log_file(Path(programs)), Known(), wanted=target)
        refused = Refused(opened)
        found = score_log(opened, trained, refused)
        refused.warn()
        return found
    if database:
        records = [record for record in programs.get_all_tuning_records() if target in str(record.target)]
        if target and not records:
            raise UsageError(f"the database has no record whose target has '{shown(target)}' in it; leave target= out to see all")
        return _rank_records(trained, records)
    if module is None:
        raise UsageError("schedules and traces do not tell which module they are of; give it: rank(model, schedules, module=...)")
    return _rank_traces(trained, [(module, getattr(program, "trace", program), np.inf, "") for program in programs])


def _rank_samples(trained: Trained, samples: Samples) -> Scored:
    tasks, numbers = np.unique(samples.tasks, return_inverse=True)
    names = tuple(samples.task_name(int(task)) for task in tasks)
    lines = np.arange(1, len(samples) + 1, dtype=np.int32)
    keys = tuple(map(str, tasks.tolist()))
    return Scored(lines, numbers.astype(np.int32), samples.latencies_s, trained.predict(samples), keys, names)


def _rank_records(trained: Trained, records: Sequence[Any]) -> Scored:
    from tcl_core.tuning.database import seconds_of

    seconds = [seconds_of(record) for record in records]
    medians = [float(np.median(each)) if each else np.inf for each in seconds]
    told = zip(records, medians, strict=True)
    return _rank_traces(trained, [(record.workload.mod, record.trace, s, str(record.target)) for record, s in told])


def _rank_traces(trained: Trained, programs: Sequence[tuple[Any, Any, float, str]]) -> Scored:
    """Rank programs, each a module, a trace of it, seconds and its target; those without loops to schedule are left out."""
    from tcl_core.tuning.adapters import samples_of_traces, workload_of

    if not programs:
        raise UsageError("there is no program to rank; give a database that has records, or schedules")
    modules: dict[str, tuple[str, Any]] = {}  # key -> the first such module's name hint, and the module
    keys, ready = [], dict[int, str]()  # many programs usually share one module object
    for module, _, _, target in programs:
        if id(module) not in ready:
            plain = as_task(module)
            ready[id(module)] = structural_key(plain)
            modules.setdefault(ready[id(module)], (_hint(module), plain))
        keys.append((ready[id(module)], target))
    kept = [row for row, (key, _) in enumerate(keys) if has_blocks(modules[key][1])]
    if not kept:
        raise UsageError("no program has loops to schedule, so there is none to rank; give others")
    if len(kept) < len(keys):
        log.warning("%d programs of tasks without loops to schedule, as scattering is, are left out", len(keys) - len(kept))
    programs, keys = [programs[row] for row in kept], [keys[row] for row in kept]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    tasks, scores = np.array([numbers[key] for key in keys], dtype=np.int32), np.empty(len(keys), dtype=np.float32)
    for key, number in numbers.items():
        rows = np.flatnonzero(tasks == number).tolist()
        workload = workload_of(*modules[key[0]])
        scores[rows] = trained.predict(samples_of_traces([programs[row][1] for row in rows], workload, trained.hardware_vector))
    lines, seconds = np.array(kept, dtype=np.int32) + 1, np.array([seconds for _, _, seconds, _ in programs])
    several = len({target for _, target in numbers}) > 1
    told = [(key, named(operator_type(*modules[key]), modules[key][1]), f" for {target}" * several) for key, target in numbers]
    return Scored(lines, tasks, seconds, scores, tuple(key + of for key, _, of in told), tuple(name + of for _, name, of in told))


def _hint(module: Any) -> str:
    """Name of a module's only function, which may tell the operator; else "main"."""
    names = [var.name_hint for var in module.get_global_vars()] if hasattr(module, "get_global_vars") else []
    return names[0] if len(names) == 1 else "main"


def figures(scores: np.ndarray | Sequence[float], samples: Samples) -> dict[str, float]:
    """Ranking quality of (N,) scores on measured samples, as means over the tasks; 1 is best.

    pairs       share of pairs ranked right
    u16         top-1 over fixed random subsets of 16 programs
    top1, top5  latency of the task's fastest program / that of the fastest among the 1 or 5 ranked best
    spearman    rank correlation

    Raises UsageError for scores of another length, DataError for NaN scores and where no program ran.
    """
    scores = np.asarray(scores)
    if scores.shape != (len(samples),):
        raise UsageError(f"there are {len(samples)} samples, and scores of shape {scores.shape}; give a number for each sample")
    measured = samples.latencies_s, samples.tasks

    def chosen(k: int) -> float:
        found = picks(scores, *measured, k)
        return float(np.mean(found.best_s / found.picked_s))

    return {
        "pairs": pairwise_accuracy(scores, *measured),
        "u16": float(np.mean(list(subset_top_1(scores, *measured).values()))),
        "top1": chosen(1),
        "top5": chosen(5),
        "spearman": spearman(scores, *measured),
    }


# --- other hardware ---


def hardware(mcpu: str | None = None) -> Hardware:
    """Hardware of this machine's CPU as models see it, for ``Trained``, ``datasets.log`` and ``distill``.

    ``mcpu`` is LLVM's name of the CPU; None: the one with the most features that this machine can run.  Memory bandwidth is
    measured once per process.  Raises UsageError for an unknown name, and on a machine that can run none that TCL knows.
    """
    mcpu = mcpu or widest_cpu()
    if mcpu is None:
        raise UsageError("this machine's CPU is none that TCL knows; give mcpu=, LLVM's name of it")
    return read_hardware(mcpu, {"bandwidth_gbs": _bandwidth_gbs()})


@cache
def _bandwidth_gbs() -> float:
    """Memory bandwidth, measured once so that all hardware rows of this machine agree."""
    return copy_bandwidth_gbs()


def distill(
    model: Model,
    measured: Samples,
    unlabelled: Samples | None = None,
    *,
    source_latencies_s: np.ndarray | Sequence[np.ndarray] | None = None,
    source_hardware: Sequence[Sequence[float] | Hardware] = (),
    earlier: Sequence[Sequence[float] | Hardware] = (),
    seed: int = 0,
) -> MambaModel:
    """Transfer ``model`` to other hardware: a network with its knowledge, corrected by measurements there (``tcl_core.chain.bridge``).

    measured            M programs that ran on that hardware, with its hardware row; some 100 already help
    unlabelled          U further programs of the same tasks, with that row; their latencies are not read
    source_latencies_s  (M + U,) seconds of both on the hardware that ``model`` learned, NaN where they were not measured; or, for
                        several earlier machines, in any order, (K, M + U)
    source_hardware     hardware, or hardware vector, of each of these machines, in their order: what follows from the difference
                        is then counted (``models.estimate``); none: for one machine that of ``model`` if it is known
    earlier             hardware, or hardware vectors, whose ranking is to be preserved; none: that of ``model`` if it is known

    The network has the size and speed of ``model``, which is not changed.  Raises UsageError for a model of another class than
    Mamba, for ``source_latencies_s`` of another shape and for a seed below 0, and as ``bridged``.
    """
    with naming_extras():
        from tcl_core.chain.bridge import BridgeSettings, bridged

    check_seed(seed)
    trained = trained_of(model)
    if not isinstance(trained.model, MambaModel):
        raise UsageError(f"{trained.origin} is no mamba model, which alone is carried on to other hardware; train a Mamba first")
    kept = [vector_of(row) for row in earlier] or ([trained.hardware_vector] if trained.hardware else [])
    more = measured.take(np.arange(0)) if unlabelled is None else unlabelled
    sources_s, count = _by_machine(source_latencies_s), len(measured) + len(more)
    if wrong := [row.shape for row in sources_s if row.shape != (count,)]:
        raise UsageError(
            f"there are {count} programs, and source_latencies_s of shape {wrong[0]}; "
            "give, for one earlier machine or for each, a number of seconds for each program, NaN where it was not measured"
        )
    machines = [vector_of(row) for row in source_hardware]
    if not machines and len(sources_s) == 1 and trained.hardware:
        machines = [trained.hardware_vector]
    usual = BridgeSettings()
    settings = replace(usual, fit=replace(usual.fit, seed=seed))
    return bridged(trained.model, measured, more, settings, sources_s=sources_s, machines=machines, earlier=kept)[0]


def _by_machine(latencies_s: np.ndarray | Sequence[np.ndarray] | None) -> list[np.ndarray]:
    """One array for each machine, given one array or several."""
    if latencies_s is None or not len(latencies_s):
        return []
    return [np.asarray(row, dtype=np.float64) for row in (latencies_s if np.ndim(latencies_s[0]) else [latencies_s])]


# --- tuning ---


@naming_extras()
def tune(
    network: str | Path,
    model: Model | None,
    *,
    mcpu: str | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    out: str | Path | None = None,
    warm_start: Sequence[str | Path] = (),
    overwrite: bool = False,
    seed: int = 0,
    threads: int | None = None,
) -> Any:
    """Tune a network on this machine's CPU; returns a ``tuning.network.Tuned`` with its latency, PyTorch's and what each task got.

    network     a .pt2 or .onnx file with fixed shapes, or a name of ``network_names``
    model       ranks the candidates; None: the search learns from its own measurements alone
    mcpu        LLVM's name of the CPU; None: the one with the most features that this machine can run, with vectors as wide as
                those of the model's hardware
    trials      programs to measure in all, or ``minutes`` to spend; without either ``DEFAULT_TRIALS``
    out         a folder that gets the tuned network as a library, its database and a report, as from ``tcl tune --out``;
                without it only the latencies remain
    warm_start  databases, or folders of tuned networks, whose programs the tasks try first where they fit
    threads     threads that the network is to use; None: one for each CPU that this process may use

    Measurements are kept in the user's cache folder until the call ends well, so that the same call resumes one that was stopped.

    Raises as ``load``, UsageError for trials below 1, minutes not above 0 or both of them, for a seed below 0, for an ``out`` that exists unless
    ``overwrite``, for a target that does not fit the model or that this machine cannot run, for more threads than CPUs,
    PlatformError where TVM cannot build the network.
    """
    from tcl_core.programs.graph import PREPARED
    from tcl_core.programs.networks import check_there
    from tcl_core.stages.machine import measuring_alone
    from tcl_core.stages.tuned_folder import add_report, tasks_ms, tuned_folder
    from tcl_core.stages.unfinished import asked_for, check_length, folder_of
    from tcl_core.tuning.network import tune_network
    from tcl_core.tuning.transfer import Donors

    check_length(trials, minutes)
    check_seed(seed)
    check_there(str(network))
    trained = None if model is None else trained_of(model)
    if trained:
        trained.check_searches()
    mcpu = mcpu or _widest_cpu(trained)
    if reason := why_not(mcpu):
        raise UsageError(f"cannot tune for {mcpu}: {reason}; give the mcpu of this machine's CPU")
    count = usable_threads() if threads is None else threads
    if not 1 <= count <= usable_threads():
        raise UsageError(f"threads is {count}, and this process may use {usable_threads()} CPUs; give 1 to {usable_threads()}")
    setup = Setup(target_of(mcpu, count), Protocol(max_repeats=8, threads=count))
    if trained:
        trained.check_target(make_target(setup.target))
    if trials is None and minutes is None:
        trials = DEFAULT_TRIALS
    databases = [Path(folder) for folder in ([warm_start] if isinstance(warm_start, str | Path) else warm_start)]
    donors = Donors(databases, setup.target) if databases else None
    asked = {"network": str(network), "target": setup.target, "model": _digest(trained)}
    kept = _kept_in(folder_of(asked | asked_for(str(network), PREPARED, setup, seed, databases)))
    with ExitStack() as alone:
        with nullcontext() if out is None else tuned_folder(Path(out), overwrite) as aside:
            alone.enter_context(measuring_alone())  # until ``kept`` is removed, so that nobody else resumes from it
            tuned = tune_network(
                str(network), PREPARED, model=trained.model if trained else None, hardware=trained.hardware_vector if trained else (),
                setup=setup, trials=trials, seed=seed, folder=kept, out=aside, minutes=minutes, donors=donors,
            )  # fmt: skip
            if aside is not None:
                told = {
                    "network": str(network), "platform": mcpu, "model": trained.origin if trained else "no model",
                    "tasks_ms": tasks_ms(asdict(tuned)["task_times"]), "target": setup.target, "threads": setup.protocol.threads,
                    "pin_threads": setup.protocol.pin_threads, "protocol": asdict(setup.protocol), "seed": seed,
                    "host": host_fingerprint(), "tvm_version": TVM_VERSION, "graph": asdict(PREPARED),
                }  # fmt: skip
                add_report(aside, {**asdict(tuned), **told})
        shutil.rmtree(kept, ignore_errors=True)  # only now, so that a call stopped earlier can be resumed
    return tuned


def _kept_in(name: str) -> Path:
    try:
        return user_cache("tuning") / name
    except RuntimeError as error:
        raise UsageError(f"there is no folder to keep what is measured in ({error}); set XDG_CACHE_HOME to one") from None


def _digest(trained: Trained | None) -> str:
    """Digest of the saved model, wherever it lies; a fresh random one if it cannot be saved, "" without a model."""
    if trained is None:
        return ""
    if isinstance(trained.hardware, Hardware):  # its bandwidth is measured, a new number each time
        trained = replace(trained, hardware=replace(trained.hardware, bandwidth_gbs=0.0))
    with tempfile.TemporaryDirectory(prefix="tcl-model-") as scratch:
        try:
            return store.data_digest(trained.save(Path(scratch) / "model"))
        except NotImplementedError:
            return uuid.uuid4().hex


def _widest_cpu(trained: Trained | None) -> str:
    """LLVM's name of the CPU with the most features that this machine can run, with vectors as wide as the model's hardware has."""
    wanted = getattr(trained.hardware, "simd_bytes", 0) if trained else 0
    if (there := widest_cpu(wanted)) is None:
        vectors = f" with vectors of {wanted:g} bytes" if wanted else ""
        raise UsageError(f"no CPU{vectors} that TCL knows is like this machine's; give its LLVM name: mcpu=...")
    return there
