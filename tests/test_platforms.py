from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcl_core.errors import UsageError
from tcl_core.params import Platform, load_params
from tcl_core.platforms import (
    CPUS,
    DESIGN_SPACES,
    KINDS,
    Ask,
    Hardware,
    hardware_under,
    host as here,
    host_fingerprint,
    kind_measured,
    kind_of,
    pool_target,
    read_hardware,
    remote_target,
    target_of,
    why_not,
)
from tcl_core.platforms.cpus import Cpu

EVERY_FLAG = frozenset().union(*(cpu.features for cpu in CPUS.values()))
XEON = """processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R)  Xeon(R) CPU @ 2.30GHz
stepping	: 4
flags		: fpu sse4_2 avx avx2 fma bmi2
bogomips	: 4600.00

processor	: 1
model name	: another
"""


@pytest.fixture
def host(monkeypatch):
    """Set the machine type and the flags that the host seems to have."""

    def pretend(machine="x86_64", flags=EVERY_FLAG):
        monkeypatch.setattr(here.host_platform, "machine", lambda: machine)
        monkeypatch.setattr(here, "cpu_flags", lambda: frozenset(flags))

    return pretend


def test_a_host_with_every_feature_runs_its_own_machine_type(host):
    host()
    assert {name for name in CPUS if why_not(name) is None} == {n for n, c in CPUS.items() if c.machine == "x86_64"}
    host("aarch64")
    assert {name for name in CPUS if why_not(name) is None} == {n for n, c in CPUS.items() if c.machine == "aarch64"}


@pytest.mark.parametrize(
    ("mcpu", "flags", "reason"),
    [
        ("haswell", EVERY_FLAG - {"avx2"}, "this CPU lacks avx2"),
        ("skylake-avx512", {"sse4_2", "avx2", "fma", "bmi2", "avx512f"}, "this CPU lacks avx512bw, avx512cd, avx512dq, avx512vl"),
        ("nehalem", (), "this CPU lacks sse4_2"),
        ("cortex-a72", EVERY_FLAG, "this machine is x86_64, cortex-a72 is aarch64"),
    ],
)
def test_why_a_platform_cannot_run(host, mcpu, flags, reason):
    host(flags=flags)
    assert why_not(mcpu) == reason


def test_an_unknown_cpu(host):
    host()
    with pytest.raises(UsageError, match="^unknown CPU 'haswel' in platforms of params.yaml; did you mean 'haswell'"):
        why_not("haswel")


@pytest.mark.parametrize("mcpu", sorted(CPUS))
def test_the_compiler_knows_every_cpu(mcpu):
    """A misspelt CPU name would silently compile for a generic one."""
    from tcl_core.compat import load_tvm

    tvm = load_tvm()
    triple = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}[CPUS[mcpu].machine]
    known = tvm.get_global_func("target.llvm_get_cpu_archlist")(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    assert mcpu in {str(name) for name in known}


def test_a_target_dictionary():
    assert target_of("haswell", 4) == {"kind": "llvm", "mcpu": "haswell", "num-cores": 4}


def test_the_target_of_another_machine():
    assert remote_target("cortex-a72", 4) == {
        "kind": "llvm", "mcpu": "cortex-a72", "num-cores": 4, "mtriple": "aarch64-linux-gnu",
    }  # fmt: skip
    assert remote_target("haswell", 2)["mtriple"] == "x86_64-linux-gnu"
    with pytest.raises(UsageError, match="did you mean 'cortex-a72'"):
        remote_target("cortex-a7", 4)


# --- fingerprint ---


def test_the_fingerprint_is_stable(tmp_path):
    code = "from tcl_core.platforms import host_fingerprint; print(host_fingerprint())"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == host_fingerprint() == host_fingerprint()
    assert f" x{here.threads()} " in host_fingerprint()


def test_the_fingerprint_tells_machines_apart(monkeypatch):
    monkeypatch.setattr(here, "_cpuinfo", lambda: {"model name": "A  CPU", "stepping": "1"})
    monkeypatch.setattr(here, "_caches_kib", lambda: {1: 32.0})
    monkeypatch.setattr(here, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(here, "threads", lambda: 4)
    first = host_fingerprint()
    assert first.startswith("A CPU x4 ") and len(first.split()[-1]) == 8
    for name, value in (
        ("_cpuinfo", {"model name": "A CPU", "stepping": "2"}),
        ("_caches_kib", {1: 48.0}),
        ("cpu_flags", frozenset({"avx2", "fma"})),
        ("cpu_flags", frozenset()),
        ("threads", 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(here, name, lambda value=value: value)
            assert host_fingerprint() != first, name
    assert host_fingerprint() == first


def test_flags_that_no_platform_needs_do_not_count(monkeypatch):
    """A kernel update shows and hides mitigations and the like; the processor is the same one."""
    prints = set()
    for others in ((), ("retbleed", "flush_l1d"), ("user_shstk",)):
        monkeypatch.setattr(here, "cpu_flags", lambda others=others: frozenset({"avx2", *others}))
        prints.add(host_fingerprint())
    assert len(prints) == 1


def test_a_host_stays_the_same_whatever_cpus_the_table_has(monkeypatch):
    """Records of it would be another host's else: what is hashed is what was hashed when the first ones were made."""
    flags = [
        "amx_tile", "asimd", "asimddp", "avx", "avx2", "avx512_bf16", "avx512_fp16", "avx512bw", "avx512cd", "avx512dq", "avx512f",
        "avx512vl", "bmi2", "fma", "sha_ni", "sse4_2", "sve",
    ]  # fmt: skip
    monkeypatch.setattr(here, "_cpuinfo", lambda: {"model name": "A CPU", "stepping": "1"})
    monkeypatch.setattr(here, "_caches_kib", lambda: {1: 32.0})
    monkeypatch.setattr(here, "cpu_flags", lambda: frozenset({*flags, "avx512_vnni", "sse4a"}))
    monkeypatch.setattr(here, "threads", lambda: 4)
    details = repr(("A CPU", "1", flags, [(1, 32.0)]))
    first = f"A CPU x4 {hashlib.sha256(details.encode()).hexdigest()[:8]}"
    assert host_fingerprint() == first
    monkeypatch.setitem(CPUS, "icelake-server", Cpu("x86_64", frozenset({"avx512_vnni"}), 64))
    assert host_fingerprint() == first


def test_a_pinned_thread_changes_neither_threads_nor_fingerprint():
    """TVM's runtime pins whoever runs programs; what is measured after is still of the same host."""
    code = """
import os
from tcl_core.platforms import host as here
def facts(): return here.threads(), here.host_fingerprint(), here._physical_cores()
before = facts()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(len(os.sched_getaffinity(0)), facts() == before)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 True"


# --- threads ---


@pytest.mark.parametrize(
    ("quota", "wanted"),
    [
        ("max 100000", 8),
        ("max", 8),
        ("300000 100000", 3),
        ("250000 100000", 2),  # a third one would be throttled half of the time
        ("10000 100000", 1),
        ("6400000 100000", 8),  # more than there are
        ("rubbish", 8),
    ],
)
def test_threads_are_the_usable_cpus_that_the_quota_grants(monkeypatch, linux, quota, wanted):
    monkeypatch.setattr(here, "USABLE_CORES", set(range(8)))
    linux({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": f"{quota}\n"})
    assert here.threads() == wanted


SERVICE, DOCKER = "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/cpu"
BELOW = {"/proc/self/cgroup": "0::/system.slice/a.service\n"}
OF_V1 = {"/proc/self/cgroup": "5:pids:/docker/1f\n4:cpu,cpuacct:/docker/1f\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 8),  # no control groups
        (BELOW, 8),
        (BELOW | {f"{SERVICE}/a.service/cpu.max": "200000 100000"}, 2),
        (BELOW | {f"{SERVICE}/a.service/cpu.max": "600000 100000", f"{SERVICE}/cpu.max": "300000 100000"}, 3),
        (BELOW | {f"{SERVICE}/b.service/cpu.max": "200000 100000"}, 8),  # another's
        (OF_V1 | {f"{DOCKER}/cpu.cfs_quota_us": "-1", f"{DOCKER}/cpu.cfs_period_us": "100000"}, 8),
        (OF_V1 | {f"{DOCKER}/cpu.cfs_quota_us": "200000", f"{DOCKER}/cpu.cfs_period_us": "100000"}, 2),  # as a container sees its own
        (OF_V1 | {f"{DOCKER}/docker/1f/cpu.cfs_quota_us": "50000", f"{DOCKER}/docker/1f/cpu.cfs_period_us": "10000"}, 5),
    ],
)
def test_the_least_quota_of_all_control_groups_above_counts(monkeypatch, linux, files, wanted):
    monkeypatch.setattr(here, "USABLE_CORES", set(range(8)))
    linux(files)
    assert here.threads() == wanted


# --- hardware ---


@pytest.fixture
def no_bandwidth(monkeypatch):
    calls = []
    monkeypatch.setattr("tcl_core.platforms.hardware.copy_bandwidth_gbs", lambda: calls.append(1) or 12.34567)
    return calls


def test_the_hardware_of_this_machine(no_bandwidth):
    hardware = read_hardware("haswell")
    assert hardware.threads == here.threads() <= len(os.sched_getaffinity(0))
    assert 1 <= hardware.cores <= hardware.threads
    assert hardware.simd_bytes == 32
    assert hardware.memory_gib > 0.1
    assert hardware.bandwidth_gbs == 12.346
    assert read_hardware("nehalem").simd_bytes == 16
    assert len(hardware.vector()) == 11 and all(type(x) is float for x in hardware.vector())


@pytest.mark.parametrize(("quota", "cores", "threads"), [("max", 4, 8), ("600000", 4, 6), ("200000", 2, 2)])
def test_a_quota_grants_no_more_cores_than_threads(monkeypatch, linux, quota, cores, threads):
    """Eight CPUs, two of each core."""
    monkeypatch.setattr(here, "USABLE_CORES", set(range(8)))
    topology = {
        f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}": text
        for cpu in range(8)
        for name, text in (("physical_package_id", "0"), ("core_id", str(cpu // 2)))
    }
    linux({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": f"{quota} 100000\n", **topology})
    fields = here.host_fields()
    assert (fields["cores"], fields["threads"]) == (cores, threads)


def test_what_is_given_counts_more_than_what_is_read(no_bandwidth):
    hardware = read_hardware("haswell", {"cores": 99, "memory_channels": 2, "bandwidth_gbs": 51.2, "simd_bytes": 8})
    assert (hardware.cores, hardware.memory_channels, hardware.bandwidth_gbs, hardware.simd_bytes) == (99, 2, 51.2, 8)
    assert not no_bandwidth  # nothing to measure


def test_an_unknown_field(no_bandwidth):
    with pytest.raises(UsageError, match="^unknown hardware field 'core' in platforms of params.yaml; did you mean 'cores'"):
        read_hardware("haswell", {"core": 4})


def test_the_hardware_of_a_machine_that_told_of_itself():
    hardware = hardware_under("cortex-a72", {"cores": 4, "memory_gib": 3.7}, {"memory_gib": 4, "memory_channels": 1})
    assert hardware == Hardware(cores=4.0, memory_gib=4.0, memory_channels=1.0, simd_bytes=16.0)
    with pytest.raises(UsageError, match="did you mean 'cores'"):
        hardware_under("cortex-a72", {}, {"core": 4})


def test_the_order_of_the_vector_is_the_order_of_the_fields():
    values = [float(n) for n in range(11)]
    assert Hardware(*values).vector() == tuple(values)
    assert [f.name for f in dataclasses.fields(Hardware)] == [
        "cores", "threads", "base_ghz", "turbo_ghz", "l1_kib", "l2_kib", "l3_kib", "memory_channels",
        "memory_gib", "bandwidth_gbs", "simd_bytes",
    ]  # fmt: skip


def test_bandwidth_is_plausible():
    assert 0.1 < here.copy_bandwidth_gbs() < 10000


# --- reading Linux ---


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """Files in place of /proc and /sys."""

    class Redirected(type(Path())):
        def __new__(cls, *parts):
            path = Path(*parts)
            return tmp_path / str(path).lstrip("/") if str(path).startswith(("/proc", "/sys")) else path

    def write(files):
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(here, "Path", Redirected)
    caches = (here._cpuinfo, here.cpu_flags, here._caches_kib)
    for cached in caches:
        cached.cache_clear()
    yield write
    for cached in caches:
        cached.cache_clear()


def test_the_first_processor_of_cpuinfo(linux):
    linux({"/proc/cpuinfo": XEON})
    assert here.cpu_flags() == {"fpu", "sse4_2", "avx", "avx2", "fma", "bmi2"}
    assert here._base_ghz() == 2.3
    assert host_fingerprint().startswith("Intel(R) Xeon(R) CPU @ 2.30GHz x")


def test_arm_features(linux):
    linux({"/proc/cpuinfo": "processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n"})
    assert here.cpu_flags() == {"fp", "asimd"}


def test_the_base_clock_without_a_name(linux, monkeypatch):
    monkeypatch.setattr(here.host_platform, "machine", lambda: "x86_64")
    linux({"/proc/cpuinfo": "model name : AMD EPYC\nbogomips : 5000.00\n"})
    assert here._base_ghz() == 2.5
    linux({"/sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2600000\n"})
    assert here._base_ghz() == 2.6


def test_caches(linux):
    base = "/sys/devices/system/cpu/cpu0/cache/index"
    entries = (("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M"), ("Unified", "3", "1G"))
    for number, (kind, level, size) in enumerate(entries):
        linux({f"{base}{number}/type": kind, f"{base}{number}/level": level, f"{base}{number}/size": f"{size}\n"})
    linux({f"{base}9/type": "Data"})  # unreadable in some containers
    assert here._caches_kib() == {1: 48.0, 2: 2048.0, 3: 1024.0**2}
    assert here.largest_cache_bytes() == 1 << 30


def test_a_machine_that_tells_nothing(linux, no_bandwidth, monkeypatch):
    """No /proc, no /sys: unknown fields are 0, and nothing raises."""
    monkeypatch.setattr(here.host_platform, "machine", lambda: "riscv64")
    assert here.cpu_flags() == frozenset()
    hardware = read_hardware("haswell")
    assert (hardware.base_ghz, hardware.turbo_ghz, hardware.l1_kib, hardware.l3_kib) == (0, 0, 0, 0)
    assert here.largest_cache_bytes() == 64 << 20
    assert host_fingerprint().startswith("riscv64 x")
    assert why_not("haswell") == "this machine is riscv64, haswell is x86_64"


# --- kinds ---

SPECS = {
    "local": Platform(mcpu="haswell"),
    "rpc": Platform("rpc", "cortex-a72", "10.0.0.2:9190", "pi4", 4, {"memory_gib": 4}),
    "cuda": Platform("cuda", hardware={"int8_tops": 624}),
}
UNASKED = Ask(lambda: pytest.fail("nobody needs this host's bandwidth"), lambda: pytest.fail("there is no device to ask"))


def test_every_kind_is_found_by_its_name_and_by_what_is_measured():
    assert KINDS.keys() == SPECS.keys()
    for name, spec in SPECS.items():
        kind = kind_of(spec)
        assert kind is KINDS[name] and kind.name == name
        assert kind_measured({"kind": kind.code}, kind.remote) is kind
        assert kind.remote == (kind.behind(spec) is not None)
        assert all(getattr(spec, key) for key in kind.keys)


def test_kinds_that_share_a_design_space_share_its_programs():
    assert DESIGN_SPACES == ("cpu", "cuda", "cuda-sm80")
    for space in DESIGN_SPACES:
        targets = [kind.pool_target(space, 3) for kind in KINDS.values() if space in kind.design_spaces]
        assert targets and all(target == pool_target(space, 3) for target in targets)


def test_a_local_platform_is_this_host(host):
    kind, spec = KINDS["local"], SPECS["local"]
    found = kind.find(spec, UNASKED._replace(bandwidth_gbs=lambda: 12.5))
    assert (found.host, found.hardware.bandwidth_gbs, found.hardware.simd_bytes) == (host_fingerprint(), 12.5, 32)
    assert kind.target(spec) == target_of("haswell", here.threads())
    assert (kind.shown_as(spec, True), kind.why_untuned("p"), kind.apart, kind.bounded) == ("haswell", None, False, True)
    host(flags=())
    assert kind.why_not(spec, "cpu") == "this CPU lacks avx2, bmi2, fma, sse4_2"


def test_a_device_behind_a_tracker_says_what_it_is():
    kind, spec = KINDS["rpc"], SPECS["rpc"]
    told = {"host": "rpc pi4: Cortex-A72", "hardware": {"cores": 4.0, "threads": 3.0}}
    found = kind.find(spec, UNASKED._replace(describe=lambda: told))
    assert found == ("rpc pi4: Cortex-A72", Hardware(cores=4.0, threads=4.0, memory_gib=4.0, simd_bytes=16.0))
    assert kind.behind(spec) == ("10.0.0.2", 9190, "pi4") and kind.target(spec) == remote_target("cortex-a72", 4)
    assert kind.why_not(spec, "cpu") is None  # away today is an error, not a platform less
    assert kind.why_untuned("p") == "networks are tuned for this machine's CPU or GPU; p is a device behind RPC" and kind.apart


def test_a_gpu_is_asked_itself(monkeypatch):
    from tcl_core import gpu

    kind, spec = KINDS["cuda"], SPECS["cuda"]
    told = dict.fromkeys(gpu.ATTRIBUTES, 0) | gpu.POOL_LIMITS | {"multiprocessors": 108, "clock_khz": 1410000, "major": 8}
    for module in ("tcl_core.gpu", "tcl_core.platforms.cuda"):
        monkeypatch.setattr(f"{module}.read_gpu", lambda: gpu.Gpu("NVIDIA A100", 80 << 30, told))
    found = kind.find(spec, UNASKED)
    assert (found.host, found.hardware.cuda_cores, found.hardware.int8_tops) == (gpu.gpu_fingerprint(), 6912, 624)
    assert kind.target(spec) == {"kind": "cuda", "arch": "sm_80", **gpu.POOL_LIMITS}
    assert (kind.shown_as(spec, True), kind.shown_as(spec, False), kind.device) == ("NVIDIA A100", "GPU", "cuda")
    assert (kind.apart, kind.bounded, kind.why_untuned("p")) == (True, False, None)
    monkeypatch.setattr("tcl_core.platforms.cuda.why_not_run", lambda space: None)
    assert kind.why_unfit({"arch": "sm_80"}) is None
    assert kind.why_unfit({"arch": "sm_90"}) == "it was built for sm_90, and this GPU is sm_80"
    monkeypatch.setattr("tcl_core.platforms.cuda.why_not_run", lambda space: "there is none")
    assert kind.why_unfit({"arch": "sm_80"}) == "there is none"


def test_only_a_cpus_caches_are_emptied():
    measure = dataclasses.replace(load_params(Path(__file__).parents[1] / "params.yaml").measure, flush_cache=True)
    for name in ("local", "rpc"):
        KINDS[name].check_measure("p", measure)
    with pytest.raises(UsageError, match="^measure.flush_cache empties a CPU's caches, and p is a GPU; set it to false"):
        KINDS["cuda"].check_measure("p", measure)
    KINDS["cuda"].check_measure("p", dataclasses.replace(measure, flush_cache=False))


def test_the_cpus_are_those_of_the_main_thread():
    """Whichever thread asks first: a service may bind its own."""
    code = (
        "import os, threading\n"
        "def first():\n"
        "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "    import tcl_core.platforms\n"
        "thread = threading.Thread(target=first); thread.start(); thread.join()\n"
        "from tcl_core.platforms import USABLE_CORES\n"
        "print(USABLE_CORES == os.sched_getaffinity(os.getpid()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "True\n"
