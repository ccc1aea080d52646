"""params.yaml as frozen, validated dataclasses: every number a run depends on, no default elsewhere.

A field's annotation is its whole check, so a new parameter is one line here and one commented line in
params.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tcl_core.crontab import check_cron
from tcl_core.errors import UsageError, unknown_name
from tcl_core.files import shown
from tcl_core.learning_names import COLUMN_STARTS, LOSSES, SCHEDULES
from tcl_core.network_names import NETWORKS, is_file_name
from tcl_core.platforms import DESIGN_SPACES, KINDS, kind_of
from tcl_core.sampler_names import SAMPLERS
from tcl_core.settings import Between, OneOf, parse, read_yaml, restored

# Upper bounds are far above what makes sense, and far below what overflows, hangs or fills the memory.
Seed = Annotated[int, Between(0, 2**32 - 1)]  # what NumPy and torch take
Count = Annotated[int, Between(1, 1_000_000)]
Pairs = Annotated[int, Between(2, 1_000_000)]  # a single program teaches nothing
CountOrZero = Annotated[int, Between(0, 1_000_000)]
Rounds = Annotated[int, Between(1, 10_000)]  # of measuring, of epochs, of repeats
Few = Annotated[int, Between(1, 100)]  # models in memory at once
Width = Annotated[int, Between(1, 4_096)]
Threads = Annotated[int, Between(0, 4_096)]
Seconds = Annotated[float, Between(0, 86_400, above=True)]
Positive = Annotated[float, Between(0, 1e9, above=True)]
NotNegative = Annotated[float, Between(0, 1e9)]
Fact = Annotated[float, Between(0, 1e12)]  # a field of the hardware
Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Between(0, 1, above=True)]


@dataclass(frozen=True)
class Networks:
    train: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True)
class Platform:
    """Hardware, and how programs get there; its kind determines which keys must be given.

    kind      local: this machine's CPU;  rpc: devices behind TVM's RPC tracker;  cuda: this machine's NVIDIA GPU
    mcpu      LLVM's name of the CPU
    tracker   rpc: host:port of the tracker;  key: the name under which it lists the devices
    threads   rpc: threads of TVM's runtime on the device
    hardware  fields of ``platforms.Hardware`` (cuda: ``gpu.GpuHardware``) that the machine does not report, or reports wrongly
    """

    kind: Annotated[str, OneOf(tuple(KINDS))] = "local"
    mcpu: str = ""
    tracker: str = ""
    key: str = ""
    threads: Threads = 0
    hardware: dict[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One later platform of the chain: ``prev`` is the platform whose model it starts from."""

    prev: str


@dataclass(frozen=True)
class Chain:
    first: str
    then: dict[str, Link]


@dataclass(frozen=True)
class Graph:
    """Changes to a network's graph before its tasks are cut (``programs.graph``); other choices give other tasks.

    simplify     remove operators that only exporters need: reshapes between products, masks of zeros
    layout       of two-dimensional convolutions; in NHWC vectors run along the channels, which are enough to fill them
    fold         fold batch norms and zero padding into the convolution beside them
    pack         let a program ask for weights in the order in which it reads them; building the network reorders them
    vector_math  compute exponentials, error functions and hyperbolic tangents by arithmetic, not by calls of the C library
    round_up     compute products whose rows or columns no tile divides, such as 197, on a few more
    winograd     compute 3x3 convolutions that gain by it with fewer multiplications, by Winograd's algorithm
    """

    simplify: bool
    layout: Annotated[str, OneOf(("NHWC", "NCHW"))]
    fold: bool
    pack: bool
    vector_math: bool
    round_up: bool
    winograd: bool


@dataclass(frozen=True)
class Candidates:
    max_train_tasks: CountOrZero
    max_held_out_tasks: CountOrZero
    programs_per_task: Count
    held_out_programs_per_task: Count
    lean: Share = 0.0
    costly: Share = 1.0
    design_space: Annotated[str, OneOf(DESIGN_SPACES)] = "cpu"


@dataclass(frozen=True)
class Measure:
    repeats: Rounds
    max_repeats: Rounds
    max_spread: NotNegative
    min_repeat_ms: Annotated[float, Between(0, 86_400_000)]
    max_number: Count
    enough_s: Seconds
    warmup: Annotated[int, Between(0, 10_000)]
    timeout_s: Seconds
    build_timeout_s: Seconds
    memory_gib: Annotated[float, Between(2, 1_048_576)]
    check_fraction: Share
    early_stop_factor: Annotated[float, Between(1, 1e9)]
    flush_cache: bool
    pin_threads: bool
    cold_weights: bool = False


@dataclass(frozen=True)
class Collect:
    sampler: Annotated[str, OneOf(tuple(SAMPLERS))]
    rounds: Rounds
    first_fraction: PositiveShare
    fraction: PositiveShare
    initial_share: PositiveShare
    epochs: Rounds
    ensemble: Few


@dataclass(frozen=True)
class Train:
    epochs: Rounds
    steps: Count
    learning_rate: Positive
    batch_size: Pairs
    weight_decay: NotNegative
    gradient_clip: Positive
    loss: Annotated[str, OneOf(tuple(LOSSES))]
    schedule: Annotated[str, OneOf(tuple(name for name in SCHEDULES if name != "step"))]  # step needs a period
    unlabelled: CountOrZero
    shipped: bool
    tuned: bool
    validation_share: Annotated[float, Between(0, 0.9)]


# Methods of learning a later platform, and where each is.  Their numbers are declared below: fields of ``Distill``, or a section.
METHODS = {
    "bridge": "tcl_core.chain.bridge:Bridge",
    "ckd": "tcl_core.chain.ckd:Ckd",
    "ckd-mended": "tcl_core.chain.ckd:CkdMended",
}


@dataclass(frozen=True)
class Bridge:
    epochs: Rounds
    learning_rate: Positive
    batch_size: Pairs
    rehearsal: Share


@dataclass(frozen=True)
class Distill:
    method: Annotated[str, OneOf(tuple(METHODS))]
    epochs: Rounds
    kd_epochs: Rounds
    learning_rate: Positive
    batch_size: Pairs
    beta: Share
    ewc_lambda: NotNegative
    adapter_width: Width
    column_start: Annotated[str, OneOf(COLUMN_STARTS)]


@dataclass(frozen=True)
class Baselines:
    models: Annotated[tuple[str, ...], Between(0)]


@dataclass(frozen=True)
class Evaluate:
    top_k: tuple[Count, ...]
    bootstrap: Annotated[int, Between(1, 100_000)]


@dataclass(frozen=True)
class Promote:
    confidence: Annotated[float, Between(0.5, 1)]
    first_confidence: Annotated[float, Between(0, 1)]
    min_tasks: Annotated[int, Between(1, 10_000)]


@dataclass(frozen=True)
class Tune:
    network: str
    trials: Count


@dataclass(frozen=True)
class Run:
    """Where programs are lowered (``flows.features``); measuring is always done where ``platforms`` says.

    engine     local: processes of this machine, one for each CPU;  dask: workers of Dask
    workers    dask: number of workers to start here; 0: one for each CPU
    scheduler  dask: address of a running scheduler that has its own workers; then none are started here
    """

    engine: Annotated[str, OneOf(("local", "dask"))]
    workers: Threads
    scheduler: str = ""


@dataclass(frozen=True)
class Drift:
    """When a machine counts as changed since it was measured, and what a scheduled check then does.

    then  report: say so;  collect: also measure the platform again and update the models
    """

    probes: Annotated[int, Between(8, 10_000)]
    clear: Annotated[float, Between(1, 1e3, above=True)]
    agreement: Share
    champion_fall: Share
    then: Annotated[str, OneOf(("report", "collect"))]


# What a schedule can run: a stage of one platform, or one of all platforms together.
OF_A_PLATFORM = ("collect", "holdout", "drift", "distill")
OF_ALL = ("pipeline", "tasks", "candidates", "train", "evaluate", "register", "promote", "tune")


@dataclass(frozen=True)
class Schedule:
    """When a Prefect server starts a run (``flows.serve``); without a platform, a stage ``OF_A_PLATFORM`` runs for each."""

    run: Annotated[str, OneOf((*OF_ALL, *OF_A_PLATFORM))]
    cron: str
    timezone: str
    platform: str = ""


@dataclass(frozen=True)
class Params:
    seed: Seed
    networks: Networks
    platforms: dict[str, Platform]
    chain: Chain
    graph: Graph
    candidates: Candidates
    measure: Measure
    collect: Collect
    train: Train
    bridge: Bridge
    distill: Distill
    baselines: Baselines
    evaluate: Evaluate
    promote: Promote
    tune: Tune
    run: Run
    drift: Drift
    schedules: dict[str, Schedule]

    @property
    def chain_order(self) -> tuple[str, ...]:
        """The chain's platforms from the first to the target."""
        return (self.chain.first, *self.chain.then)

    def previous(self, platform: str) -> str | None:
        """The platform whose model ``platform`` starts from; None for the chain's first."""
        if platform not in self.chain_order:
            raise unknown_name("platform", platform, self.chain_order, "the chain of params.yaml")
        return None if platform == self.chain.first else self.chain.then[platform].prev


PARAMS = "params.yaml"


def load_params(path: str | Path = PARAMS) -> Params:
    """Read and check ``path``.  UsageError: no file, YAML syntax, unknown or missing key, bad value."""
    path = Path(path)
    return parse_params(read_yaml(path), str(path))


def parse_params(tree: Any, source: str = "params.yaml") -> Params:
    """The parameters of an already parsed YAML document; ``source`` names it in error messages."""
    if not isinstance(tree, Mapping):
        raise UsageError(f"{source} holds no sections; restore it ({restored(source)})")
    params = parse(Params, tree, "", source)
    _check_networks(params, source)
    _check_platforms(params, source)
    _check_chain(params, source)
    _check_top_k(params.evaluate, source)
    _check_repeats(params.measure, source)
    _check_schedules(params, source)
    _check_run(params.run, source)
    return params


def _check_networks(params: Params, source: str) -> None:
    networks = params.networks
    for key, names in (("train", networks.train), ("held_out", networks.held_out)):
        for name in names:
            _check_network(f"networks.{key}", name, source)
    _check_network("tune.network", params.tune.network, source)
    for name in networks.held_out:
        if name in networks.train:
            raise UsageError(
                f"{source}: network '{name}' is in both networks.train and networks.held_out; "
                "remove it from one, a network that was trained on cannot test the model"
            )


def _check_network(key: str, name: str, source: str) -> None:
    """Raise UsageError unless it is a known name or a file's; the file itself is checked when its tasks are cut."""
    if not is_file_name(name) and name not in NETWORKS:
        raise unknown_name(f"network of {key}", name, NETWORKS, f"{source}, and no .pt2 or .onnx file")


def _check_platforms(params: Params, source: str) -> None:
    for name, platform in params.platforms.items():
        if not re.fullmatch("[a-z0-9][a-z0-9-]*", name):
            raise UsageError(
                f"{source}: '{name}' cannot name a platform, for folders and models are called by it; "
                "use small letters, digits and hyphens only"
            )
        _check_platform(name, platform, source)
        _check_design_space(name, platform, params.candidates.design_space, source)


def _check_platform(name: str, platform: Platform, source: str) -> None:
    """Raise UsageError unless exactly the keys of its kind are given, with values that the kind accepts."""
    kind = kind_of(platform)
    for key in sorted({key for other in KINDS.values() for key in other.keys}):
        given = bool(getattr(platform, key))
        if key in kind.keys and not given:
            raise UsageError(f"{source}: platforms.{name} is of kind {kind.name} and lacks '{key}'; add it")
        if given and key not in kind.keys:
            raise UsageError(f"{source}: platforms.{name}.{key} says nothing about kind {kind.name}; remove it")
    kind.check(platform, f"{source}: platforms.{name}")


def _check_design_space(name: str, platform: Platform, design_space: str, source: str) -> None:
    """Raise UsageError for a kind of another design space: all platforms measure one pool, so all are CPUs or all are GPUs."""
    if design_space not in kind_of(platform).design_spaces:
        raise UsageError(
            f"{source}: platforms.{name} is of kind {platform.kind}, but candidates.design_space is {design_space}, "
            "and CPUs and GPUs share no programs; give all platforms the design space's kind (a GPU: tcl profile cuda)"
        )


def _check_repeats(measure: Measure, source: str) -> None:
    if measure.max_repeats < measure.repeats:
        raise UsageError(
            f"{source}: measure.max_repeats is {measure.max_repeats}, fewer than measure.repeats ({measure.repeats}); raise it"
        )


def _check_run(run: Run, source: str) -> None:
    if run.scheduler and run.engine != "dask":
        raise UsageError(f"{source}: run.scheduler says nothing about the engine {run.engine}; remove it, or set run.engine to dask")
    if run.scheduler and not re.fullmatch(r"(tcp|tls|ws|wss)://[^\s/@]+:[0-9]{1,5}", run.scheduler):
        raise UsageError(f"{source}: run.scheduler is '{shown(run.scheduler)}'; it must be an address such as tcp://192.168.0.2:8786")


def _check_top_k(evaluate: Evaluate, source: str) -> None:
    if 1 not in evaluate.top_k:
        raise UsageError(
            f"{source}: evaluate.top_k is {list(evaluate.top_k)}, but must contain 1: reports and the summary are written of top-1; add it"
        )


def _check_chain(params: Params, source: str) -> None:
    earlier: list[str] = []
    for name in params.chain_order:
        if name not in params.platforms:
            raise unknown_name("platform", name, params.platforms, f"the chain of {source}")
        if name in earlier:
            raise UsageError(f"{source}: platform '{name}' is both chain.first and in chain.then; remove one of them")
        if earlier and params.chain.then[name].prev not in earlier:
            raise UsageError(
                f"{source}: chain.then.{name}.prev is '{params.chain.then[name].prev}', "
                f"which is not an earlier platform of the chain; use one of: {', '.join(earlier)}"
            )
        earlier.append(name)
    # DVC measures in this order, and a sampler may start from the previous platform's measurements.
    listed = [name for name in params.platforms if name in earlier]
    if listed != sorted(listed, key=earlier.index):
        raise UsageError(f"{source}: platforms stand in another order than in the chain ({', '.join(earlier)}); give them the chain's")


def _check_schedules(params: Params, source: str) -> None:
    for name, schedule in params.schedules.items():
        where = f"{source}: schedules.{name}"
        check_cron(schedule.cron, schedule.timezone, f"{where}.cron")
        if schedule.platform and schedule.run not in OF_A_PLATFORM:
            raise UsageError(f"{where} runs '{schedule.run}' on a platform, but that is no work of one; remove the platform")
        known = params.chain.then if schedule.run == "distill" else params.platforms
        if not known:
            raise UsageError(f"{where} runs 'distill', but no platform comes later in the chain; remove it, or add one to chain.then")
        if schedule.platform and schedule.platform not in known:
            raise unknown_name("platform", schedule.platform, known, where)
