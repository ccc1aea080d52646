from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tcl_core import compat
from tcl_core.compat import quiet_compiler
from tcl_core.errors import PlatformError

ROOT = Path(__file__).parents[1]
CORES = os.sched_getaffinity(0)


def fresh(code: str) -> str:
    """What a new Python process prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pretend(monkeypatch, **versions):
    real = importlib.metadata.version

    def version(package):
        found = versions.get(package.replace("-", "_"), real(package))
        if found is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_the_installed_versions_are_the_right_ones():
    compat.check_versions()


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"apache_tvm_ffi": "0.1.15.post2"}, "apache-tvm-ffi 0.1.15.post2"),
        ({"apache_tvm_ffi": None}, "apache-tvm-ffi none"),
        ({"apache_tvm": "0.26.0"}, "apache-tvm 0.26.0"),
    ],
)
def test_a_version_that_crashes_is_refused_with_the_remedy(monkeypatch, versions, found):
    pretend(monkeypatch, **versions)
    wanted = "0.1.14.post1" if "ffi" in found else "0.27.0.post1"
    with pytest.raises(PlatformError) as raised:
        compat.check_versions()
    assert str(raised.value) == (
        f"{found} is installed, but only {wanted} works here (others crash the process); "
        "run: pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1"
    )


def test_versions_are_asked_before_anything_of_tvm_is_imported(monkeypatch):
    imported = []
    monkeypatch.setattr(compat.importlib, "import_module", imported.append)
    pretend(monkeypatch, apache_tvm_ffi="9.9")
    with pytest.raises(PlatformError):
        compat.load_tvm.__wrapped__()
    assert imported == []


def test_loading_is_light_and_foreign_intrinsics_stay_out():
    """A design space of a CPU target must not parse what other hardware has; nor does a worker import torch."""
    code = """
import sys
from tcl_core.compat import load_tvm
tvm = load_tvm(without_torch=True)
from tvm import te
x = te.placeholder((4, 4), name="x")
module = tvm.IRModule({"main": te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + 1)])})
from tcl_core.programs.sketches import DesignSpace
DesignSpace("key", module, {"kind": "llvm", "num-cores": 1}).sketches()
intrinsics = [name for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin.")]
print(intrinsics, "torch" in sys.modules, "transformers" in sys.modules)
import tvm.s_tir.tensor_intrin.x86
print([name for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin.")])
print(tvm.s_tir.TensorIntrin.get("dot_16x4_vnni") is not None)
"""
    assert fresh(code).splitlines() == ["[] False False", "['tvm.s_tir.tensor_intrin.x86']", "True"]


def test_tvm_s_own_rules_find_the_intrinsics_of_their_target():
    """As in a script that tunes with TCL and with TVM alone: of another machine's CPU too."""
    code = """
import tvm
from tcl_core.compat import load_tvm
load_tvm()
from tvm.s_tir import meta_schedule as ms
from tvm import te

a, b, k = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b"), te.reduce_axis((0, 64), name="k")
product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
module = tvm.IRModule({"main": te.create_prim_func([a, b, product])})
for more in ({"mcpu": "sapphirerapids"}, {"mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod"]}):
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **more})
    print(len(ms.TuneContext(module, target=target, space_generator="post-order-apply").generate_design_space()))
"""
    assert [int(line) > 0 for line in fresh(code).splitlines()] == [True, True]


def test_a_hidden_package_is_there_again_afterwards():
    code = """
import sys
from tcl_core.compat import hidden
with hidden("colorsys"):
    try:
        import colorsys
    except ImportError as error:
        print(type(error).__name__)
print("colorsys" in sys.modules)
import colorsys
with hidden("colorsys"):
    import colorsys as again
print(again is colorsys is sys.modules["colorsys"])
try:
    with hidden("imghdr_of_nobody"):
        raise KeyError("inside")
except KeyError:
    print("imghdr_of_nobody" in sys.modules)
"""
    assert fresh(code).splitlines() == ["ModuleNotFoundError", "False", "True", "False"]


def test_torch_can_be_imported_after_a_compiler_without_it():
    assert (
        fresh("from tcl_core.compat import load_tvm; load_tvm(without_torch=True); import torch; print(torch.ones(2).sum().item())")
        == "2.0"
    )


def test_a_confined_process_never_asks_for_nvidias_bindings(tmp_path):
    """They come with torch for GPUs, and look for libraries with a compiler and a temporary file."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("raise FileNotFoundError('No usable temporary directory found')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from tcl_core.compat import load_tvm
print(load_tvm(without_torch=True).__name__, "cuda" in sys.modules)
"""
    assert fresh(code) == "tvm False"


def test_importing_compat_loads_no_compiler():
    assert fresh("import sys, tcl_core.compat; print('tvm' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_a_target():
    target = compat.make_target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    assert (str(target.kind.name if hasattr(target.kind, "name") else target.kind), int(target.attrs["num-cores"])) == ("llvm", 2)


@pytest.mark.parametrize("spec", [{"kind": "no-such-kind"}, {"kind": "llvm", "no-such-option": 1}, {}])
def test_a_target_that_tvm_does_not_know(spec):
    with pytest.raises(PlatformError) as raised:
        compat.make_target(spec)
    message = str(raised.value)
    assert message.startswith(f"TVM has no target {spec}: ") and "\n" not in message


def test_threads_of_the_runtime():
    """As many as asked for, though TVM by itself counts each second logical CPU only and obeys OMP_NUM_THREADS.

    In a process of its own: TVM also binds the calling thread to a core.
    """
    code = """
from tcl_core.compat import load_tvm, set_threads
tvm = load_tvm(without_torch=True)
set_threads(2)
print(tvm.get_global_func("runtime.NumThreads")())
"""
    assert fresh(code) == "2"


def test_the_calling_thread_is_bound_to_a_core_that_no_other_thread_is_bound_to():
    """One core more is taken each time, from the last on; with none left it stays free.  Afterwards it is always free."""
    code = """
import json, os, threading
from tcl_core.compat import calling_thread_pinned
def inside():
    with calling_thread_pinned():
        return sorted(os.sched_getaffinity(0))
def bind(core):
    os.sched_setaffinity(0, {core})
    bound.set()
    end.wait()
cores, found, end = sorted(os.sched_getaffinity(0)), [], threading.Event()
for core in reversed(cores):
    bound = threading.Event()
    found.append(inside())
    threading.Thread(target=bind, args=(core,), daemon=True).start()
    bound.wait()
found.append(inside())
try:
    with calling_thread_pinned():
        raise ValueError
except ValueError:
    print(json.dumps([cores, found, sorted(os.sched_getaffinity(0))]))
"""
    cores, found, after = json.loads(fresh(code))
    assert after == cores and found == [*([core] for core in reversed(cores)), cores]


def runtime_with(configure):
    """In place of ``load_tvm``: a TVM that can set its threads, and nothing else."""
    return lambda: SimpleNamespace(get_global_func={"runtime.config_threadpool": configure}.get)


@pytest.mark.parametrize(
    ("allotted", "count", "cores"),
    [({60, 61, 62, 63}, 4, [63, 62, 61, 60]), ({60, 61, 62, 63}, 2, [63, 62]), ({5}, 3, [5, 5, 5])],
)
def test_each_thread_has_a_core_that_the_process_was_given(monkeypatch, allotted, count, cores):
    """And the calling thread, which TVM confines too, has all of them afterwards."""
    asked, own = [], [allotted]

    def configure(*arguments):
        asked.append(arguments)
        own.append({0})

    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # so that all is as before when the test is over
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    monkeypatch.setattr(compat, "load_tvm", runtime_with(configure))
    monkeypatch.setattr(compat.os, "sched_getaffinity", lambda thread: own[-1])
    monkeypatch.setattr(compat.os, "sched_setaffinity", lambda thread, cores: own.append(cores))
    compat.set_threads(count)
    assert asked == [(compat.ONE_CORE_PER_THREAD, count, [str(core) for core in cores])]
    assert own[-1] == allotted and (os.environ["TVM_NUM_THREADS"], os.environ["TVM_BIND_THREADS"]) == (str(count), "1")


@pytest.mark.skipif(len(CORES) < 2, reason="one core leaves no choice")
@pytest.mark.parametrize("core", [min(CORES), max(CORES)])
def test_no_thread_leaves_the_cores_that_the_process_was_given(core):
    """By a container or taskset; TVM by itself counts the cores of the machine."""
    code = f"""
import os
os.sched_setaffinity(0, {{{core}}})
from tcl_core.compat import load_tvm, set_threads
tvm = load_tvm(without_torch=True)
set_threads(2)
threads = [int(thread) for thread in os.listdir("/proc/self/task")]
print(tvm.get_global_func("runtime.NumThreads")(), set().union(*map(os.sched_getaffinity, threads)))
"""
    assert fresh(code) == f"2 {{{core}}}"


def refuses(error):
    def refuse(*arguments):
        raise error

    return refuse


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("sched_setaffinity", PermissionError(1, "Operation not permitted")),
        ("listdir", FileNotFoundError(2, "No such file or directory", "/proc/self/task")),
    ],
)
def test_where_threads_cannot_be_bound(monkeypatch, function, error):
    """In some containers; no program is to blame for that."""
    with monkeypatch.context() as patch, pytest.raises(PlatformError) as raised:
        patch.setattr(compat.os, "sched_getaffinity", lambda thread: {0, 1})
        patch.setattr(compat.os, function, refuses(error))
        with compat.calling_thread_pinned():
            pass
    assert str(raised.value) == (f"threads cannot be bound to cores here ({error}); set measure.pin_threads to false in params.yaml")


def test_threads_that_need_not_be_bound_need_no_right_to_it(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    monkeypatch.setattr(compat, "load_tvm", runtime_with(lambda *arguments: None))
    monkeypatch.setattr(compat.os, "sched_setaffinity", refuses(PermissionError(1, "Operation not permitted")))
    compat.set_threads(2, pinned=False)
    assert os.environ["TVM_BIND_THREADS"] == "0"


def test_the_structural_key_is_stable():
    """Equal for equal modules whatever their names of variables, and the same number in every process and release."""
    code = """
import sys; sys.path.insert(0, {tests!r})
from tcl_core.compat import load_tvm, structural_key
load_tvm(without_torch=True)
from tvm import te
import tvm
def key(names, extent=8):
    x = te.placeholder((extent,), name=names[0])
    y = te.compute((extent,), lambda i: x[i] * 2, name=names[1])
    return structural_key(tvm.IRModule({{"main": te.create_prim_func([x, y])}}))
print(key("xy"), key("ay") == key("xy"), key("xy", 9) == key("xy"))
""".format(tests=str(ROOT / "tests"))
    first, second = fresh(code).split(), fresh(code).split()
    assert first == second
    assert len(first[0]) == 16 and first[1:] == ["True", "False"]


def test_a_module_of_this_version_is_read_as_it_is_and_an_older_ones_is_rewritten_first(monkeypatch):
    """``load_json`` brings another version's text up to date, here its name of a variable's field; ours needs none of that."""
    tvm = compat.load_tvm()
    node = tvm.tirx.Var("x", "int32")
    text = tvm.ir.save_json(node)
    older = text.replace('"name":', '"name_hint":').replace(compat.TVM_VERSION, "0.20.0")
    assert older != text and compat.load_module(older).name == "x"
    monkeypatch.setattr(tvm.ir, "load_json", lambda text: pytest.fail("rewritten"))
    assert compat.load_module(text).name == "x"


def test_of_two_threads_the_last_gives_standard_error_back(capfd):
    """The process has one: whoever left first would give the other's silence back for good."""
    inside, leave = threading.Event(), threading.Event()

    def longer():
        with quiet_compiler():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=longer)
    with quiet_compiler():
        thread.start()
        assert inside.wait(20)
        os.write(2, b"silent")
    os.write(2, b"still silent")
    leave.set()
    thread.join(20)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_without_standard_error_nothing_is_silenced():
    code = "import os; os.close(2); from tcl_core.compat import quiet_compiler\nwith quiet_compiler(): print('done')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_errors_keep_their_type_on_their_way_through_tvm():
    """Those that are derived from another of TCL's too."""
    said = fresh("""
from tcl_core import compat
from tcl_core.errors import BusyError, UsageError
compat.hand_on_errors()
import tvm_ffi
for kind in (UsageError, BusyError):
    def fails():
        raise kind("a sentence")
    try:
        tvm_ffi.convert_func(fails)()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[-1])
""")
    assert said.splitlines() == ["UsageError a sentence", "BusyError a sentence"]
