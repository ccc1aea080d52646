"""Which data layout suits which kind of convolution: channels before the image (NCHW) beside channels last (NHWC).

    python bench/layouts.py [--quick] [--seeds N] [--minutes M]

Each layer, with a bias and a ReLU, is prepared as networks are (params.yaml), once in each layout and without Winograd, which only NHWC
has.  In both its convolution gets equally many programs, which our search finds from scratch, for the champion has learned NHWC alone.
Then the best programs of the two are measured once more, twice each, in turns.  What moves data from one layout to the other is left
out: most networks need it at their entrance and end alone (docs/architecture.md).

A ratio above 1 says that NCHW takes longer; a kind's is the geometric mean over its layers, with the 95 % interval over seeds.  Each
layer and seed is a unit, of which none begins after --minutes; the same command goes on.  --quick: a layer of each kind, one seed, 16
programs; its results are a file of their own.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from _tables import Quick, Results, arguments, into_document, markdown, mean_interval

from tcl_core import environment  # noqa: F401  (before torch is imported)

import torch
from _identity import code_identity, folder_identity

from tcl_core.compat import make_target, quiet_compiler
from tcl_core.errors import TclError
from tcl_core.measure.job import Job, Protocol, Setup
from tcl_core.measure.runner import Runner
from tcl_core.params import Graph
from tcl_core.platforms import host_fingerprint
from tcl_core.programs.graph import fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.tasks import EXTRACTION_TARGET, Task, describe, fused_tasks
from tcl_core.progress import progress
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings

COMMAND = "python bench/layouts.py"
LAYOUTS = NCHW, NHWC = "NCHW", "NHWC"
CONVOLUTIONS = "conv2d", "depthwise_conv2d"


@dataclass(frozen=True)
class Layer:
    """A convolution of a known network; ``image`` is its input's height and width."""

    kind: str
    of: str
    inputs: int
    outputs: int
    image: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    dilation: int = 1

    @property
    def name(self) -> str:
        said = f"{self.of}: {self.inputs} to {self.outputs}, {self.kernel}x{self.kernel} at {self.image}x{self.image}"
        more = {"stride": self.stride, "groups": self.groups, "dilation": self.dilation}
        return ", ".join([said, *(f"{name} {value}" for name, value in more.items() if value > 1)])

    def tasks(self, graphs: Mapping[str, Graph]) -> dict[str, Task]:
        """Layout -> the task of its convolution in a network of this layer alone."""
        options = {"stride": self.stride, "padding": self.dilation * (self.kernel // 2), "groups": self.groups, "dilation": self.dilation}
        network = torch.nn.Sequential(torch.nn.Conv2d(self.inputs, self.outputs, self.kernel, **options), torch.nn.ReLU()).eval()
        target, found = make_target(EXTRACTION_TARGET), {}
        with quiet_compiler(), torch.no_grad():
            module = relax_from_exported(torch.export.export(network, (torch.zeros(1, self.inputs, self.image, self.image),)), self.name)
            for layout, graph in graphs.items():
                described = [describe(each.task_name, each.dispatched[0]) for each in fused_tasks(fuse(module, target, graph), target)]
                (found[layout],) = (task for task in described if task.operator in CONVOLUTIONS)
        return found


LAYERS = (
    Layer("3x3", "ResNet-18", 64, 64, 56),
    Layer("3x3", "ResNet-18", 256, 256, 14),
    Layer("3x3", "ResNet-18", 512, 512, 7),
    Layer("3x3", "ResNet-18", 128, 256, 28, stride=2),
    Layer("1x1", "ResNet-50", 64, 256, 56, kernel=1),
    Layer("1x1", "ResNet-50", 1024, 256, 14, kernel=1),
    Layer("1x1", "ResNet-50", 512, 2048, 7, kernel=1),
    Layer("first", "ResNet-18", 3, 64, 224, kernel=7, stride=2),
    Layer("first", "MobileNet-V2", 3, 32, 224, stride=2),
    Layer("depthwise", "MobileNet-V2", 32, 32, 112, groups=32),
    Layer("depthwise", "MobileNet-V2", 96, 96, 112, stride=2, groups=96),
    Layer("depthwise", "MobileNet-V2", 192, 192, 28, groups=192),
    Layer("depthwise", "MobileNet-V2", 576, 576, 14, groups=576),
    Layer("depthwise", "ConvNeXt-T", 96, 96, 56, kernel=7, groups=96),
    Layer("grouped", "ResNeXt-50", 128, 128, 56, groups=32),
    Layer("grouped", "ResNeXt-50", 256, 256, 28, groups=32),
    Layer("grouped", "ResNeXt-50", 1024, 1024, 7, groups=32),
    Layer("grouped", "RegNetX-400MF", 160, 160, 14, groups=10),
    Layer("dilated", "DeepLab-V3", 256, 256, 28, dilation=2),
    Layer("dilated", "DeepLab-V3", 512, 512, 14, dilation=4),
)
KINDS = tuple(dict.fromkeys(layer.kind for layer in LAYERS))


@dataclass(frozen=True)
class Size:
    """Which layers, how many seeds of each, and programs of each layout in all and at a time."""

    layers: Sequence[Layer] = LAYERS
    seeds: int = 3
    trials: int = 32
    round: int = 8


QUICK = Size([next(layer for layer in LAYERS if layer.kind == kind) for kind in KINDS], seeds=1, trials=16)
SMALLEST = Size([Layer("3x3", "none", 8, 8, 8), Layer("depthwise", "none", 8, 8, 8, groups=8)], seeds=1, trials=2, round=2)


def graphs(graph: Graph) -> dict[str, Graph]:
    """Layout -> how a network is prepared for it, else as ``graph`` says, but without Winograd."""
    return {layout: replace(graph, layout=layout, winograd=False) for layout in LAYOUTS}


class Bench:
    """All that the units share."""

    def __init__(self, runner: Runner, graph: Graph, size: Size) -> None:
        self.runner, self.setup, self.size = runner, runner.setup, size
        self.graphs = graphs(graph)

    def unit(self, layer: Layer, seed: int) -> dict[str, Any]:
        """A layer in both layouts, another one first with each seed, and its best programs side by side."""
        order = LAYOUTS if seed % 2 else LAYOUTS[::-1]
        tasks = layer.tasks(self.graphs)
        best = {layout: self._best(tasks[layout], seed) for layout in order}
        there = [layout for layout, job in best.items() if job is not None] * 2
        readings: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
        for layout, outcome in zip(there, self.runner.measure([job for job in best.values() if job is not None] * 2), strict=True):
            readings[layout] += outcome.latencies_s
        return {
            "layer": layer.name,
            "kind": layer.kind,
            "seed": seed,
            "best_s": {layout: statistics.median(found) if found else None for layout, found in readings.items()},
        }

    def _best(self, task: Task, seed: int) -> Job | None:
        """The fastest program that the search finds; None if none runs."""
        search = ScheduleSearch(task, None, (), self.setup.target, SearchSettings(seed=seed))
        cold = self.setup.times_cold(task.module_json)
        fastest, best = math.inf, None
        for _ in range(0, self.size.trials, self.size.round):
            search.schedules(self.size.round)
            jobs = [Job(task.key, task.module_json, search.traces_json[sketch], drawn, cold=cold) for sketch, drawn in search.waiting]
            for candidate, job, outcome in zip(search.waiting, jobs, self.runner.measure(jobs), strict=True):
                latency_s = statistics.median(outcome.latencies_s) if outcome.latencies_s else math.inf
                search.tell(candidate, latency_s)
                if latency_s < fastest:
                    fastest, best = latency_s, job
        return best


# --- figures ---


def ratios(units: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Kind -> [geometric mean, low, high] of NCHW's time / NHWC's; the interval is over seeds, None where there is one."""
    found: dict[str, list[float | None]] = {}
    for kind in dict.fromkeys(unit["kind"] for unit in units):
        by_seed: dict[int, list[float]] = {}
        for unit in units:
            if unit["kind"] == kind and all(unit["best_s"].values()):
                by_seed.setdefault(unit["seed"], []).append(math.log(unit["best_s"][NCHW] / unit["best_s"][NHWC]))
        means = [statistics.fmean(logs) for logs in by_seed.values()]
        if means:
            ends = mean_interval(means) if len(means) > 1 else (means[0], None, None)
            found[kind] = [None if end is None else math.exp(end) for end in ends]
    return found


def table(units: Sequence[Mapping[str, Any]]) -> str:
    """A row for each layer, medians over its seeds, and one for each kind."""
    rows: list[list[str]] = []
    for kind, (mean, low, high) in ratios(units).items():
        layers = dict.fromkeys(unit["layer"] for unit in units if unit["kind"] == kind)
        rows += [_row(name, [unit for unit in units if unit["layer"] == name]) for name in layers]
        rows.append([f"**{kind}**", "", "", f"**{mean:.2f}**" + ("" if low is None else f" ({low:.2f} to {high:.2f})")])
    return markdown(("layer", "NCHW ms", "NHWC ms", "NCHW / NHWC"), rows)


def _row(name: str, units: Sequence[Mapping[str, Any]]) -> list[str]:
    both = [unit["best_s"] for unit in units if all(unit["best_s"].values())]
    if not both:
        return [name, "-", "-", "-"]
    ms = {layout: statistics.median(best[layout] for best in both) * 1e3 for layout in LAYOUTS}
    of = statistics.geometric_mean([best[NCHW] / best[NHWC] for best in both])
    return [name, f"{ms[NCHW]:.3f}", f"{ms[NHWC]:.3f}", f"{of:.2f}"]


# --- the whole comparison ---


def run(size: Size, command: str, setup: Callable[[Setup], Setup], minutes: float, force: bool) -> None:
    until, workspace = time.monotonic() + 60 * minutes, Workspace()
    if not (platforms := workspace.platforms_that_ran()):
        sys.exit("layouts: this machine can run none of the chain's platforms")
    setting = setup(setup_of(workspace, platforms[-1]))
    about = {
        "host": host_fingerprint(),
        "graph": asdict(workspace.params.graph),
        "size": {"trials": size.trials, "round": size.round},
        "search": asdict(SearchSettings()),
        "protocol": setting.protocol_json(),
        "code": folder_identity("tuning") + code_identity(["tcl_core.programs.graph"], ["layouts"]),
    }
    results = Results("layouts", lambda found: [_name(unit) for unit in found["units"]])
    units = [] if force else results.of(about).get("units", [])
    done = {_name(unit) for unit in units}
    left = [(layer, seed) for seed in range(size.seeds) for layer in size.layers if (layer.name, seed) not in done]
    with measuring_alone(), Runner(setting) as runner, progress("layers", len(left)) as shown, quiet_compiler():
        bench = Bench(runner, workspace.params.graph, size)
        for place, (layer, seed) in enumerate(left):
            if time.monotonic() > until:
                print(f"{len(left) - place} units are left; rerun the same command for them")
                break
            units.append(bench.unit(layer, seed))
            results.save({"identity": about, "summary": ratios(units), "units": units}, command, place + 1 == len(left))
            shown.advance(f"{layer.kind}, seed {seed}")
    print(table(units))
    if results.published().get("identity") == about:
        into_document("layouts", table(units))


def _name(unit: Mapping[str, Any]) -> tuple[str, int]:
    return unit["layer"], unit["seed"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="a layer of each kind, one seed, 16 programs")
    parser.add_argument("--seeds", type=int, choices=range(1, 51), metavar="N", default=Size.seeds, help=f"of each layer ({Size.seeds})")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no unit after that; rerun for the others")
    parser.add_argument("--force", action="store_true", help="measure all anew")
    given = parser.parse_args()
    size, setup = (QUICK if given.quick else Size(seeds=given.seeds)), lambda setup: setup
    if given.smallest:
        fast = Protocol(repeats=1, max_repeats=1, min_repeat_ms=0.1, max_number=1, threads=1)
        size, setup = SMALLEST, lambda setup: replace(setup, protocol=fast)
    try:
        run(size, " ".join([COMMAND, *sys.argv[1:]]), setup, given.minutes, given.force)
    except TclError as error:
        sys.exit(f"layouts: {error}")


if __name__ == "__main__":
    main()
