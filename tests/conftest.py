"""Tiny tasks, their sketches and programs: built once, shared by all tests that need the compiler."""

from __future__ import annotations

import faulthandler
import os
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import clean_environment  # noqa: F401  (before whatever reads environment variables)

# isort: split
from tcl_core import environment  # noqa: F401  (before torch is imported: its threads would spin, and tests run side by side)

# isort: split
import numpy as np
import pytest
import torch  # before TVM, which would do without it in this process if a worker's way of loading it came first

from tcl_core.compat import load_tvm, make_target, quiet_compiler
from tcl_core.measure.job import Job, Limits, Outcome, Protocol, Setup
from tcl_core.programs.sketches import DesignSpace, Sketch, trace_to_json
from tcl_core.programs.tasks import EXTRACTION_TARGET, Task, describe
from tcl_core.programs.workload import Workload, read_workload


WHOLE = "test_end_to_end.py", "test_bench_scripts.py", "test_examples.py"
SLOW = (  # `make test` leaves them out, so that it ends in a quarter of an hour: whole runs, networks tuned and built, kills, servers
    *WHOLE, "test_bench_datasets.py", "test_bench_networks.py", "test_collect_ends.py", "test_device_command.py", "test_distributed.py",
    "test_dvc_lock.py", "test_exporting.py", "test_features_flow.py", "test_kills.py", "test_latency.py", "test_network_tuning.py",
    "test_plain_tvm.py", "test_remote.py", "test_serve.py", "test_shipped_model.py", "test_wheel.py",
)  # fmt: skip
USABLE = os.sched_getaffinity(0)
MOST_S = 1500  # seconds of a test, and of what it is given


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in WHOLE)  # so that no process is left alone with one of them
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)


def _limited(item: pytest.Item) -> Iterator[None]:
    """A test that waits for ever fails, and the others run."""

    def late(*_: object) -> None:
        pytest.fail(f"no end within {MOST_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_S)
    faulthandler.dump_traceback_later(MOST_S + 60, exit=True)  # no handler runs while a call of compiled code never returns
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_limited)  # whole runs of the pipeline are fixtures
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_limited)
pytest_runtest_teardown = pytest.hookimpl(wrapper=True)(_limited)


def interruptible() -> None:
    """For ``preexec_fn``: a suite that runs in the background ignores Ctrl-C and hang-ups, and so would its children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def unpinned():
    """TVM's thread pool pins the thread that sets it up; the next test has all CPUs again."""
    yield
    os.sched_setaffinity(0, USABLE)


@dataclass
class TinyTask:
    """One task with everything that can be made of it."""

    task: Task

    @cached_property
    def module(self) -> Any:
        return self.task.module()

    @cached_property
    def space(self) -> DesignSpace:
        return DesignSpace(self.task.key, self.module, EXTRACTION_TARGET)

    @cached_property
    def sketches(self) -> list[Sketch]:
        return self.space.sketches()

    @cached_property
    def workload(self) -> Workload:
        return read_workload(self.task.operator, self.task.flops, self.module)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the sketches table."""
        return [{"task_key": self.task.key, "sketch_id": s.index, "trace_json": trace_to_json(s.trace)} for s in self.sketches]

    def sample(self, sketch: Sketch, count: int, seed: int = 0) -> np.ndarray:
        return sketch.sample(count, np.random.default_rng(seed))


def matmul_module(rows: int = 32, columns: int = 32, depth: int = 32) -> Any:
    """relu(A @ B) of float32."""
    tvm = load_tvm()
    from tvm import te

    a, b = te.placeholder((rows, depth), name="A"), te.placeholder((depth, columns), name="B")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    relu = te.compute((rows, columns), lambda i, j: tvm.tirx.max(product[i, j], tvm.tirx.const(0, "float32")), name="relu")
    return tvm.IRModule({"main": te.create_prim_func([a, b, relu])})


def conv_module() -> Any:
    """relu(conv2d(x, w) + bias): 8 channels of 8 x 8, 3 x 3 kernel, padded."""
    tvm = load_tvm()
    from tvm import te, topi

    x, w = te.placeholder((1, 8, 8, 8), name="x"), te.placeholder((16, 8, 3, 3), name="w")
    bias = te.placeholder((1, 16, 1, 1), name="bias")
    conv = topi.nn.conv2d(x, w, 1, 1, 1)
    out = topi.nn.relu(topi.add(conv, bias))
    return tvm.IRModule({"main": te.create_prim_func([x, w, bias, out])})


def softmax_module() -> Any:
    tvm = load_tvm()
    from tvm import te, topi

    x = te.placeholder((16, 64), name="x")
    return tvm.IRModule({"main": te.create_prim_func([x, topi.nn.softmax(x)])})


@pytest.fixture(scope="session")
def matmul() -> TinyTask:
    return TinyTask(describe("fused_matmul_relu", matmul_module()))


@pytest.fixture(scope="session")
def conv() -> TinyTask:
    return TinyTask(describe("fused_conv2d_add_relu", conv_module()))


@pytest.fixture(scope="session")
def softmax() -> TinyTask:
    return TinyTask(describe("softmax", softmax_module()))


@pytest.fixture(scope="session")
def tiny_elementwise() -> TinyTask:
    """y = x + 1 of 16 x 64."""
    tvm = load_tvm()
    from tvm import te

    x = te.placeholder((16, 64), name="x")
    y = te.compute((16, 64), lambda i, j: x[i, j] + tvm.tirx.const(1, "float32"), name="y")
    return TinyTask(describe("add", tvm.IRModule({"main": te.create_prim_func([x, y])})))


@pytest.fixture(scope="session")
def tiny_tasks(matmul: TinyTask, conv: TinyTask, softmax: TinyTask) -> dict[str, TinyTask]:
    return {"matmul": matmul, "conv": conv, "softmax": softmax}


class TinyNetwork(torch.nn.Module):
    """Two equal convolutions, a depthwise one, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.classifier = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        x = torch.relu(self.depthwise(x)).mean(dim=(2, 3))
        return torch.softmax(self.classifier(x), dim=-1)


@pytest.fixture(scope="session")
def tiny_network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ``.pt2`` file."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("network") / "tiny.pt2"
    torch.export.save(torch.export.export(TinyNetwork().eval(), (torch.randn(1, 8, 8, 8),)), path)
    return str(path)


def output(module, *inputs: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    """The first output of a Relax module, built for this machine without vectors of its own."""
    tvm = load_tvm()
    with quiet_compiler():
        machine = tvm.relax.VirtualMachine(tvm.compile(module, make_target({"kind": "llvm", "num-cores": 1})), tvm.cpu())
        found = machine["main"](*map(tvm.runtime.tensor, inputs))
    return (found if hasattr(found, "numpy") else found[0]).numpy()


def onnx_model(path, nodes, inputs, outputs, weights=None) -> str:  # type: ignore[no-untyped-def]
    """Write an ONNX file: ``nodes`` are (operator, inputs, outputs), ``inputs`` and ``outputs`` name -> shape."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()] for values in (inputs, outputs)
    )
    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph([helper.make_node(*node) for node in nodes], "graph", given, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, path)
    return str(path)


def quick_setup(run_s: float = 10.0, build_s: float = 30.0, memory_bytes: int = 16 << 30, **protocol: Any) -> Setup:
    """Two short repeats on one thread of the plain host target."""
    timing = {"repeats": 2, "max_repeats": 2, "min_repeat_ms": 0.2, "max_number": 10, "threads": 1} | protocol
    return Setup(EXTRACTION_TARGET, Protocol(**timing), Limits(build_s, run_s, memory_bytes))


@pytest.fixture(scope="session")
def make_setup() -> Callable[..., Setup]:
    return quick_setup


class FakeRunner:
    """Latencies by a hash of the decisions; each seventh program or so fails."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.tvm_version, self.jobs, self.limit = setup, "0.0", [], None

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        return map(self._measured, jobs)

    def _measured(self, job: Job) -> Outcome:
        if self.limit is not None and len(self.jobs) >= self.limit:
            raise KeyboardInterrupt
        self.jobs.append(job)
        number = zlib.crc32(repr(job.decisions).encode())
        failure = {0: "crash", 1: "timeout"}.get(number % 14)
        return Outcome(failure, message="why") if failure else Outcome("ok", ((1 + number % 1000) * 1e-6,) * 3)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[FakeRunner]:
    """The runners that collections start; set ``limit`` to interrupt each after so many programs."""

    class Runners(list):  # type: ignore[type-arg]
        limit: int | None = None

    made = Runners()

    def start(setup: Setup) -> FakeRunner:
        made.append(FakeRunner(setup))
        made[-1].limit = made.limit
        return made[-1]

    monkeypatch.setattr("tcl_core.collect.Runner", start)
    return made


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server with a database of its own; starting it takes seconds, so once for all tests of flows."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
