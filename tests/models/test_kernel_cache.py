"""Kernels on the disk: a later process has them without the compiler, and nothing there can break a prediction."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tcl_core.compat import load_tvm
from tcl_core.models import kernel_cache, scan_kernel, scan_tir
from tcl_core.models.mamba import MambaBlock, TokenBatch

SHAPE = 16, 2, 2, 2  # W, N, R, K
LATER = """
import sys, torch
from tcl_core.models import scan_kernel
assert scan_kernel.kernel("last", 16, 2, 2, 2) is not None
print("tvm" in sys.modules)
"""


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tcl" / "kernels"


def compiled():
    """The kernel as a process has it that never asked before."""
    return scan_kernel._kernel.__wrapped__("last", *SHAPE)


def scores(run, monkeypatch):
    monkeypatch.setattr(scan_kernel, "kernel", lambda *_: run)
    torch.manual_seed(0)
    block, index = MambaBlock(16, 2, 2, 2), torch.randint(0, 5, (200, 8))
    with torch.inference_mode():
        return block.mix(torch.randn(5, 32), TokenBatch(torch.zeros(5, 1), index, torch.full((200,), 8), last=True))


def test_a_later_process_needs_no_compiler(empty):
    assert compiled() is not None and len(list(empty.glob("last-*.so"))) == 1
    later = subprocess.run([sys.executable, "-c", LATER], env=dict(os.environ), capture_output=True, text=True, check=True)
    assert later.stdout.split() == ["False"]


def test_from_the_disk_it_gives_the_same(monkeypatch):
    fresh, kept = compiled(), compiled()
    assert torch.equal(scores(fresh, monkeypatch), scores(kept, monkeypatch))


@pytest.mark.parametrize("damage", ["garbage", "a flipped bit", "others may write"])
def test_a_damaged_file_is_made_anew_and_that_is_said(empty, monkeypatch, caplog, damage):
    fresh = scores(compiled(), monkeypatch)
    (path,) = empty.iterdir()
    whole = path.read_bytes()
    if damage == "others may write":
        path.chmod(0o622)
    else:
        path.write_bytes(b"garbage" if damage == "garbage" else whole[:-1000] + bytes([whole[-1000] ^ 1]) + whole[-999:])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty.parents[1]))
    monkeypatch.setattr(kernel_cache, "load_compiled", lambda path: pytest.fail("it was loaded"))
    assert torch.equal(scores(compiled(), monkeypatch), fresh)
    assert "is damaged" in caplog.text and "is compiled again" in caplog.text
    assert path.stat().st_size == len(whole) and path.stat().st_mode & 0o777 == 0o600


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled() is not None


def test_a_folder_that_may_not_be_looked_into_is_no_error(monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kernel_cache.Path, "exists", forbidden)
    assert compiled() is not None


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(kernel_cache.Path, "home", homeless)
    assert compiled() is not None


def test_other_code_has_another_file(empty):
    for source in ("a", "b"):
        kernel_cache.cached("last", source, lambda: scan_tir.compiled("last", *SHAPE))
    assert len(list(empty.iterdir())) == 2


@pytest.mark.parametrize(
    ("flags", "without"),
    [
        ({"sse2", "avx", "avx2"}, ["-avx512f"]),
        ({"sse2", "avx", "avx2", "avx512f"}, []),
        ({"sse2"}, ["-avx512f", "-avx2", "-avx"]),
        ({"asimd"}, []),
    ],
)
def test_vectors_that_a_hypervisor_hides_are_not_used(monkeypatch, flags, without):
    """LLVM names the CPU by family and model, and takes all that such a CPU has to be there."""
    monkeypatch.setattr(scan_tir, "cpu_flags", lambda: frozenset(flags))
    found = scan_tir._this_cpu(load_tvm())
    assert found["mcpu"] and found.get("mattr", []) == without
