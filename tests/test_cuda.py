"""CUDA programs, as far as a machine without a GPU carries them: sketches, sampling, rejection, source and machine code."""

from __future__ import annotations

import re
import shutil
from collections import Counter

import numpy as np
import pytest
from conftest import TinyTask, conv_module, matmul_module, onnx_model

from tcl_core.compat import load_tvm, make_target, quiet_compiler, structural_key
from tcl_core.features.encode import Encoder
from tcl_core.features.layout import KINDS, WIDTH
from tcl_core.gpu import GpuHardware
from tcl_core.measure.sentinel import sentinel_module
from tcl_core.platforms import KINDS as KINDS_OF_PLATFORMS, pool_target
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.gpu_limits import SHARED_BYTES, Limits, read_limits, launching
from tcl_core.programs.networks import load_relax
from tcl_core.programs.pool import build_pool
from tcl_core.programs.primitives import sketch_primitives
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, read_sketch, trace_from_json, trace_to_json
from tcl_core.programs.tasks import describe
from tcl_core.programs.trace_text import read_template
from tcl_core.programs.unlabelled import draw_unlabelled
from tcl_core.programs.workload import read_workload
from tcl_core.tuning.library import export

H100 = pool_target("cuda-sm80", 1) | {"arch": "sm_90"}


@pytest.fixture(scope="module", params=["matmul", "conv"])
def tiny(request):
    module = {"matmul": lambda: matmul_module(64, 64, 64), "conv": conv_module}[request.param]()
    return TinyTask(describe(f"fused_{request.param}", module))


def space_of(tiny, target=H100):
    return DesignSpace(tiny.task.key, tiny.module, target)


@pytest.fixture(scope="module")
def space(tiny):
    return space_of(tiny)


@pytest.fixture(scope="module")
def sketches(space):
    return space.sketches()


def limits_of(space, sketch) -> Limits:
    return read_limits(sketch, read_workload("", 0.0, space.module))


def valid(space, sketch, rng):
    """Decisions of a program that TVM accepts."""
    drawn = sketch.sample(4000, rng)
    return next(space.canonical(sketch, row) for row in drawn[limits_of(space, sketch).allow(drawn)] if is_taken(space, sketch, row))


def test_a_design_space_of_cuda(sketches):
    """On threads of blocks, through shared memory; with and without asynchronous copies."""
    assert len(sketches) == 3
    for sketch in sketches:
        text = str(sketch.trace)
        assert "threadIdx.x" in text and "blockIdx.x" in text and 'storage_scope="shared"' in text
    assert sum("software_pipeline_async_stages" in str(sketch.trace) for sketch in sketches) == 2


def test_pipelines_of_more_stages_have_other_tokens(tiny, space, sketches):
    """They differ in an array that an annotation holds, and in nothing else."""
    encoder = Encoder([tiny.task], [])
    for sketch in sketches:
        encoder.add(sketch)
    first, second = (sketch for sketch in sketches if "software_pipeline_stage" in str(sketch.trace))
    (decisions,) = first.sample(1, np.random.default_rng(0)).tolist()
    keys = [(tiny.task.key, sketch.index, tuple(decisions)) for sketch in (first, second)]
    tokens = encoder.encode(keys, GpuHardware().vector()).features
    assert tokens.shape[2] == WIDTH and not np.array_equal(*tokens)


def test_older_gpus_have_no_asynchronous_copies(tiny):
    (sketch,) = space_of(tiny, pool_target("cuda", 1)).sketches()
    assert "software_pipeline" not in str(sketch.trace)


def test_what_the_gpu_cannot_hold_is_an_invalid_program(space, sketches):
    """Told by TVM's VerifyGPUCode; no error."""
    rng, found = np.random.default_rng(0), Counter()
    for decisions in sketches[0].sample(40, rng):
        try:
            space.canonical(sketches[0], decisions)
            found["valid"] += 1
        except InvalidProgram as error:
            found[str(error)] += 1
    assert found["rejected by VerifyGPUCode"] > 10 and set(found) <= {"valid", "rejected by VerifyGPUCode"}


def test_a_sketchs_text_says_what_its_replay_says(space, sketches):
    workload = read_workload("matmul", 1.0, space.module)
    for sketch in sketches:
        text = trace_to_json(sketch.trace)
        replayed = read_sketch("", 0, trace_from_json(text, space.module))
        assert read_template(text, workload) == (sketch_primitives(replayed, workload), sketch.width)


def test_a_sketch_survives_as_text_and_decisions(space, sketches):
    """And means the same under the target of another GPU."""
    rng = np.random.default_rng(1)
    for sketch in sketches:
        decisions = valid(space, sketch, rng)
        again = read_sketch(sketch.task_key, 0, trace_from_json(trace_to_json(sketch.trace), space.module))
        other = DesignSpace(sketch.task_key, space.module, H100 | {"arch": "sm_80"})
        expected, found = space.materialise(sketch, decisions).mod, other.materialise(again, decisions).mod
        assert structural_key(expected) == structural_key(found)


# --- what can be launched, told beforehand ---


def threads_of(schedule):
    """Threads of each kernel's blocks, read from the program's text."""
    return {int(n) for n in re.findall(r'thread_binding\((\d+), thread="threadIdx.x"\)', schedule.mod.script())}


def shared_bytes_of(source):
    """Of the kernel with most, as CUDA is told."""
    kernels = source.split("__global__")[1:]
    return max(sum(4 * int(n) for n in re.findall(r"__shared__ .*?\[(\d+)\];", kernel)) for kernel in kernels)


def test_threads_and_shared_memory_are_told_from_the_decisions(space, sketches):
    """As TVM binds and allots them."""
    rng = np.random.default_rng(2)
    for sketch in sketches:
        limits = limits_of(space, sketch)
        (columns,) = set(limits.threads)
        drawn = sketch.sample(4000, rng)
        for decisions in drawn[limits.allow(drawn)][:3]:
            assert threads_of(space.materialise(sketch, decisions)) == {int(np.prod(decisions[list(columns)]))}
            (told,) = limits.shared_bytes(decisions[None]).values()
            assert shared_bytes_of(source_of(space, sketch, decisions)) == told[0] <= SHARED_BYTES


def test_what_cannot_be_launched_is_found_without_a_replay(space, sketches):
    """All that TVM refuses, but for what its pipelines trip over; and nothing that it takes."""
    rng = np.random.default_rng(3)
    for sketch in sketches:
        drawn = sketch.sample(4000, rng)
        fits = limits_of(space, sketch).allow(drawn)
        assert 0 < fits.mean() < 0.5
        assert sum(is_taken(space, sketch, decisions) for decisions in drawn[fits][:10]) >= 8
        assert not any(is_taken(space, sketch, decisions) for decisions in drawn[~fits][:10])


def is_taken(space, sketch, decisions) -> bool:
    try:
        space.canonical(sketch, decisions)
    except InvalidProgram:
        return False
    return True


def test_of_a_cpus_sketch_all_can_be_launched(matmul):
    fits = launching(matmul.sketches, read_workload("matmul", 1.0, matmul.module))
    assert all(fits(sketch, sketch.sample(10, np.random.default_rng(5))).all() for sketch in matmul.sketches)


def test_a_pool_for_gpus(tiny):
    rows, programs = build_pool([tiny.task], 0, 6, 0, 2, design_space="cuda")
    assert len(programs) == 6 == len(set(programs)) and len(rows) == 1
    space = space_of(tiny)
    sketch = read_sketch(tiny.task.key, 0, trace_from_json(rows[0]["trace_json"], space.module))
    for program in programs:
        space.canonical(sketch, program.decisions)  # valid on a newer GPU too
    encoder = Encoder([tiny.task], rows)
    samples = encoder.encode([(p.task_key, p.sketch, p.decisions) for p in programs], GpuHardware(cuda_cores=16896).vector())
    assert samples.features.shape == (6, samples.lengths.max(), WIDTH)
    assert samples.features[0, :, KINDS.index("Bind")].sum() == 3  # blocks, virtual threads, threads
    assert len(np.unique(samples.features.reshape(6, -1), axis=0)) == 6


def test_further_programs_for_gpus_are_drawn_without_being_tried(tiny, space, sketches, monkeypatch):
    """Hardly any of them is none."""
    texts = {(tiny.task.key, sketch.index): trace_to_json(sketch.trace) for sketch in sketches}
    monkeypatch.setattr(DesignSpace, "materialise", lambda *given: pytest.fail("tried"))
    drawn = draw_unlabelled([tiny.task], texts, (), 12, 0, pool_target("cuda-sm80", 1))
    monkeypatch.undo()
    assert len(set(drawn)) == 12
    assert sum(is_taken(space, sketches[sketch], np.array(decisions)) for _, sketch, decisions in drawn) >= 10


# --- code ---


def source_of(space, sketch, decisions):
    target = make_target(H100)
    with target:
        built = load_tvm().tirx.build(space.materialise(sketch, decisions).mod, target=target)
    (kernels,) = built.imports
    assert str(kernels.kind) == "cuda"
    return str(kernels.inspect_source())


def test_cuda_source_is_made_without_a_gpu(space, sketches):
    for sketch in sketches:
        source = source_of(space, sketch, valid(space, sketch, np.random.default_rng(4)))
        assert "__global__" in source and "__shared__" in source
        assert ("cp.async" in source) == ("software_pipeline_async_stages" in str(sketch.trace))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_nvcc_makes_machine_code_of_it(space, sketches):
    from tvm.support import nvcc

    sketch = sketches[-1]
    source = source_of(space, sketch, valid(space, sketch, np.random.default_rng(6)))
    with make_target(H100):
        code = nvcc.compile_cuda(source, target_format="cubin", arch="sm_90", compiler="nvcc")
    assert bytes(code[:4]) == b"\x7fELF" and b"main_kernel" in bytes(code)


def test_what_nobody_scheduled_is_bound_to_threads_by_rules(tiny):
    """A GPU runs no unbound loop, but a program's output is compared with that of the task as it is written down."""
    target, kind = make_target(H100), KINDS_OF_PLATFORMS["cuda"]
    unsearched = kind.unsearched(tiny.module, target)
    with target:
        built = load_tvm().tirx.build(unsearched, target=target)
    assert "__global__" in str(built.imports[0].inspect_source())
    assert KINDS_OF_PLATFORMS["local"].unsearched(tiny.module, target) is tiny.module


def test_a_network_is_built_for_a_gpu(tmp_path):
    """Its tasks without programs by TVM's rules; the library has code for both sides."""
    target = make_target(H100)
    network = onnx_model(tmp_path / "net.onnx", [("Relu", ["x"], ["h"]), ("Softmax", ["h"], ["y"])], {"x": (4, 16)}, {"y": (4, 16)})
    with quiet_compiler():
        export(fuse(load_relax(network), target, PREPARED), target, tmp_path / "net.so")
    library = (tmp_path / "net.so").read_bytes()
    assert library[:4] == b"\x7fELF" and b"_kernel" in library


def test_the_sentinel_of_a_gpu():
    target = make_target(H100)
    with target:
        built = load_tvm().tirx.build(sentinel_module("cuda"), target=target)
    assert "__global__" in str(built.imports[0].inspect_source())
