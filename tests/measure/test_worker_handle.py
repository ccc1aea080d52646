"""One worker as its supervisor sees it; the worker is a stand-in that needs no compiler."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import sys
import tempfile
from threading import Timer

import psutil
import pytest

from tcl_core import sandbox
from tcl_core.errors import PlatformError
from tcl_core.measure import worker_handle
from tcl_core.measure.job import Limits, Setup, Tracker
from tcl_core.measure.worker_handle import Died, Failed, WorkerHandle, Late, Stopped
from tcl_core.platforms import USABLE_CORES

STAND_IN = f"""#!{sys.executable}
import json, os, resource, signal, subprocess, sys, time
from multiprocessing.connection import Connection
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
connection = Connection(int(sys.argv[-3]))
setup = connection.recv()
say = lambda *answer: connection.send_bytes(json.dumps(answer).encode())
say("ready", "9.9")
while True:
    action, *arguments = connection.recv()
    if action == "echo":
        say("done", arguments)
    if action == "tell":
        say("done", (sys.argv[1:-3], sys.argv[-2:], setup.limits.memory_bytes, sys.stdin.read()))
    if action == "answers":
        say(*arguments)
    if action in ("bytes", "time", "build"):
        connection.send_bytes(arguments[-1])
    if action == "begins":
        os.write(connection.fileno(), (16).to_bytes(4, "big"))
        signal.pause()
    if action == "waits":
        for _ in range(5):
            time.sleep(0.5)
            say("waiting", None)
        say("done", "at last")
    if action == "exits":
        os._exit(3)
    if action == "is killed":
        os.kill(os.getpid(), *arguments)
    if action == "compiles":
        say("done", subprocess.Popen(["sleep", "60"]).pid)
    if action == "hangs":
        signal.pause()
"""


def with_interpreter(tmp_path, monkeypatch, text):
    script = tmp_path / "python"
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.fixture
def worker(tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the setup's class
    worker = WorkerHandle(Setup({"kind": "llvm"}, limits=Limits(memory_bytes=12345)))
    worker.launch()
    worker.wait_until_ready()
    yield worker
    worker.close()


def test_a_request_and_its_answer(worker):
    assert worker.tvm_version == "9.9" and worker.is_alive
    assert worker.ask(20, "echo", 1, "two") == [1, "two"]
    cores = ",".join(map(str, sorted(USABLE_CORES)))
    command = sandbox.command("tcl_core.measure.worker", sandbox.Rights())[1:]
    assert worker.ask(20, "tell") == [command, ["12345", cores], 12345, ""]


@pytest.mark.parametrize(("kind", "error"), [("failed", Failed), ("crashed", Died), ("late", Late), ("impossible", PlatformError)])
def test_a_failure_that_the_worker_tells_of_keeps_it(worker, kind, error):
    before = worker.process.pid
    worker.held.add(7)
    with pytest.raises(error, match="^why$"):
        worker.ask(20, "answers", kind, "why")
    assert worker.is_alive and worker.process.pid == before and worker.held == {7}


PICKLED = pickle.dumps(("done", [0.1]))
NO_ANSWERS = [
    b"",
    b"7",
    b"[]",
    b'["done"]',
    b'["done", 1, 2]',
    b"\xff",
    b"[" * 100_000,
    b'[["done"], 1]',
    b'["over", 1]',
    PICKLED,
    b'["failed", 7]',
]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        *(("bytes", text) for text in NO_ANSWERS),
        *(
            ("time", text)
            for text in (b'["done", []]', b'["done", [1.0]]', b'["done", "1"]', b'["done", 0.0]', b'["done", NaN]', b'["done", true]')
        ),
        ("build", b'["done", "soon"]'),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_a_program_writes_in_its_workers_name_is_data(worker, action, said):
    """Unpickled, it could have done anything here."""
    with pytest.raises(Died, match="^the process gave an answer that is none$"):
        worker.ask(20, action, said)
    assert not worker.is_alive


def test_seconds_of_repeats_and_builds(worker):
    assert worker.ask(20, "time", b'["done", 1e-6]') == 1e-6 and worker.ask(20, "build", b'["done", 2]') == 2


def test_an_answer_of_a_megabyte_is_none(worker):
    """Of one that is only shorter it would be an answer."""
    assert worker.ask(20, "bytes", b'["done", "aa"]') == "aa"
    with pytest.raises(Died):
        worker.ask(20, "bytes", b'["done", "' + b"a" * (1 << 20) + b'"]')


def test_waiting_for_a_device_does_not_count(worker):
    """2.5 s in all, never two without a word."""
    worker.setup = dataclasses.replace(worker.setup, tracker=Tracker("127.0.0.1", 9190, "board"))
    assert worker.ask(2.0, "waits") == "at last"


def test_who_measures_here_waits_for_no_device(worker):
    """A program could say so for ever in its worker's name."""
    with pytest.raises(Died, match="^the process gave an answer that is none$"):
        worker.ask(20, "answers", "waiting", None)


def test_an_answer_that_is_begun_and_never_ended_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_handle, "REST_S", 1)
    with_interpreter(tmp_path, monkeypatch, STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    worker = WorkerHandle(Setup({"kind": "llvm"}))
    worker.launch()
    worker.wait_until_ready()
    with pytest.raises(Died, match="^the process hung$"):
        worker.ask(20, "begins")
    assert not worker.is_alive
    worker.close()


def test_what_a_worker_says_of_a_failure_is_one_line_that_can_be_kept(worker):
    with pytest.raises(Failed) as failed:
        worker.ask(20, "answers", "failed", "a\nb\ud800" + "c" * 1000)
    assert str(failed.value).startswith("a\\nb\\ud800ccc") and len(str(failed.value)) < 400


def test_a_late_answer_costs_the_worker_its_life(worker):
    process = worker.process
    worker.held.add(7)
    with pytest.raises(Late):
        worker.ask(0.1, "hangs")
    assert not worker.is_alive and worker.held == set() and process.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (("exits",), "the process exited with 3"),
        (("is killed", signal.SIGSEGV), "the process was killed by SIGSEGV"),
        (("is killed", signal.SIGILL), "the process was killed by SIGILL"),
        (("is killed", 40), "the process was killed by signal 40"),
    ],
)
def test_how_a_worker_died(worker, request_, said):
    worker.held.add(7)
    with pytest.raises(Died) as raised:
        worker.ask(20, *request_)
    assert str(raised.value) == said and not worker.is_alive and worker.held == set()


def test_a_worker_that_was_stopped_answers_nothing(worker):
    worker.stop()
    with pytest.raises(Stopped):
        worker.ask(20, "echo")


@pytest.mark.parametrize("action", ["", "hangs", "exits"])
def test_what_a_worker_started_ends_with_it(worker, action):
    """Compilers would else go on for nobody, beside what is measured next."""
    compiler = psutil.Process(worker.ask(20, "compiles"))
    if action:
        with pytest.raises((Late, Died)):
            worker.ask(0.5, action)
    else:
        worker.stop()
    psutil.wait_procs([compiler], timeout=20)
    assert not compiler.is_running() or compiler.status() == psutil.STATUS_ZOMBIE


def test_who_asks_for_a_dead_worker_leaves_it_its_number(worker):
    """It is its group's as well, which may be ended hours later, and would be given to another process."""
    compiler, dead = psutil.Process(worker.ask(20, "compiles")), worker.process
    os.kill(dead.pid, signal.SIGKILL)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert not worker.is_alive and dead.returncode is None and psutil.Process(dead.pid).status() == psutil.STATUS_ZOMBIE
    worker.stop()
    assert dead.returncode == -signal.SIGKILL
    psutil.wait_procs([compiler], timeout=20)
    assert not compiler.is_running() or compiler.status() == psutil.STATUS_ZOMBIE


def test_no_group_is_ended_whose_number_may_be_anothers(worker, monkeypatch):
    worker.process.kill()
    worker.process.wait()
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("the number was given back"))
    assert not worker.is_alive
    worker.stop()


def test_another_thread_may_stop_it_in_the_middle_of_a_request(worker):
    """So Ctrl-C ends builds that are under way."""
    stopper = Timer(0.2, worker.stop)
    stopper.start()
    with pytest.raises(Stopped):
        worker.ask(60, "hangs")
    stopper.join()
    assert not worker.is_alive


# --- launching ---


def test_a_sound_worker_stays(worker):
    pid = worker.process.pid
    worker.launch()
    worker.wait_until_ready()
    assert worker.process.pid == pid and worker.ask(20, "echo", 1) == [1]


def test_a_dead_worker_is_replaced(worker):
    dead = worker.process
    worker.held.add(7)
    dead.kill()
    dead.wait()
    assert not worker.is_alive
    worker.launch()
    assert worker.tvm_version == "" and worker.held == set()
    worker.wait_until_ready()
    assert worker.process.pid != dead.pid and worker.tvm_version == "9.9" and worker.ask(20, "echo", 1) == [1]


def test_a_worker_that_holds_much_memory_is_replaced(worker, monkeypatch):
    """What LLVM compiled for dropped programs is given back with the process."""
    process = worker.process
    assert worker._resident_bytes() == pytest.approx(psutil.Process(process.pid).memory_info().rss, rel=0.5)
    monkeypatch.setattr(worker_handle, "RECYCLE_BYTES", 1 << 20)
    worker.launch()
    worker.wait_until_ready()
    assert worker.process is not process and process.poll() is not None and worker.ask(20, "echo", 1) == [1]


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    files, children = len(os.listdir("/proc/self/fd")), len(psutil.Process().children())
    for way in (("answers", "failed", "why"), ("exits",), ("hangs",)):
        worker = WorkerHandle(Setup({"kind": "llvm"}))
        worker.launch()
        worker.wait_until_ready()
        with pytest.raises((Failed, Died, Late)):
            worker.ask(0.5, *way)
        worker.close()
    assert len(os.listdir("/proc/self/fd")) == files and len(psutil.Process().children()) == children


def test_a_worker_that_links_has_a_folder_for_it_until_it_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = WorkerHandle(Setup({"kind": "llvm"}, tracker=Tracker("127.0.0.1", 9190, "board")))
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("tcl-scratch-worker-")
    assert json.loads(worker._command()[3])["scratch"] == str(folder)
    worker.close()
    assert os.listdir(tmp_path) == []


# --- a worker that does not start ---


def test_an_installation_that_cannot_start_a_worker(tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, "#!/bin/sh\necho first; echo 'No module named tvm' >&2; exit 3\n")
    worker = WorkerHandle(Setup({"kind": "llvm"}))
    worker.launch()
    with pytest.raises(PlatformError) as raised:
        worker.wait_until_ready()
    assert str(raised.value) == (
        "the measuring process exited with 3 at its start; its last words: No module named tvm; run it again, and if it ends so again, "
        "install TCL anew"
    )
    worker.close()


def test_a_worker_that_hangs_at_its_start_is_not_left_running(tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 300\n")
    monkeypatch.setattr(worker_handle, "START_S", 0.2)
    worker = WorkerHandle(Setup({"kind": "llvm"}))
    worker.launch()
    process = psutil.Process(worker.process.pid)
    with pytest.raises(PlatformError, match="^the measuring process hung at its start; its last words: none; run it again, "):
        worker.wait_until_ready()
    assert not process.is_running() and not worker.is_alive
    worker.close()
