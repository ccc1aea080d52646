"""`tcl import`: what lies where, again and again, killed in between; imported programs as samples."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store
from tcl_core.checked import read_json
from tcl_core.errors import BusyError, DataError, UsageError
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.models import catalogue
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace
from tests.programs.log_lines import ansor_line, autotvm_line
from tests.programs.test_metaschedule_logs import RECORDS, WORKLOADS, commit, named_otherwise, plain_database
from tests.stages import exchanged
from tests.stages.exchanged import FOLDER, ROOT, digest, import_logs, imported_batches, line, log, programs

here = exchanged.here


# --- import ---


def test_what_an_import_writes(here):
    log("random.log.gz", *(line(n, 2**n) for n in range(5)))
    log("searched.log", line(0, 2), line(1, 64), "garbage", autotvm_line([["other", "ot", 1]], ([1e9], 4, 1, 1)))
    said = import_logs([Path("logs/random.log.gz"), Path("logs/searched.log")], "p")
    assert said.splitlines()[0] == "random (AutoTVM): 5 records of 5 lines: 5 ok"
    assert said.splitlines()[1] == "searched (AutoTVM): 3 records of 4 lines: 2 ok, 1 refused, 1 run"
    assert said.splitlines()[2].startswith("  line 3: no JSON (")
    assert sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("[a-z]*.*")) == [
        "records/random.parquet", "records/searched.parquet", "reports/random.json", "reports/random.refused.txt",
        "reports/searched.json", "reports/searched.refused.txt", "sketches.parquet", "tasks.parquet",
    ]  # fmt: skip
    records = store.read_records(FOLDER / "records")
    assert len(records) == 8 and {r.host for r in records} == {"llvm -keys=cpu"}
    (failed,) = [r for r in records if r.error != "ok"]
    assert (failed.error, failed.message, failed.latencies_s) == ("run", "runtime error on the device", ())
    (first,) = [r for r in records if r.decisions == (-1, 16)]
    assert first.latency_s == pytest.approx(4.1) and first.program_id == 5 and first.tvm_version == "0.10.0"
    assert first.measured_at == datetime(1970, 1, 1, 0, 16, 44, tzinfo=UTC)
    tasks = store.read_table(FOLDER / "tasks.parquet", "tasks")
    sketches = store.read_table(FOLDER / "sketches.parquet", "sketches")
    assert {r.task_key for r in records} == {row["task_key"] for row in tasks}
    assert {(r.task_key, r.sketch_id) for r in records} == {(row["task_key"], row["sketch_id"]) for row in sketches}
    report = read_json(FOLDER / "reports" / "searched.json", "import it again")
    assert report == {
        "log": "logs/searched.log", "dialect": "AutoTVM", "target": "llvm -keys=cpu", "lines": 4,
        "records": 3, "outcomes": {"ok": 2, "refused": 1, "run": 1},
    }  # fmt: skip
    assert (FOLDER / "reports" / "searched.refused.txt").read_text().startswith("3\tno JSON")


def test_refused_lines_are_all_in_the_report_and_the_first_are_said(here):
    path = log("a.log", line(0), *["bad"] * 20)
    said = import_logs([path], "p").splitlines()
    assert [text[:9] for text in said[1:4]] == ["  line 2:", "  line 3:", "  line 4:"] and len(said) == 5
    assert said[4] == "  all of them: data/imported/platform=p/reports/a.refused.txt"
    assert len((FOLDER / "reports" / "a.refused.txt").read_text().splitlines()) == 20


def test_the_same_log_again_replaces_its_own_records_alone(here):
    random, searched = log("random.log", line(1), line(2)), log("searched.log", line(3))
    import_logs([random, searched], "p")
    before = digest()
    import_logs([random], "p")
    import_logs([searched, random], "p")
    assert digest() == before
    log("random.log", line(1), line(2), line(9, 16))
    import_logs([random], "p")
    assert len(programs(files=["random"])) == 3 and len(programs(files=["searched"])) == 1


def test_the_order_of_imports_does_not_matter(here):
    paths = [log("a.log", line(1), line(2, task=["dense.x86", [], {}])), log("b.log", autotvm_line(), line(3))]
    import_logs(paths, "p")
    first = digest()
    shutil.rmtree(FOLDER)
    import_logs(paths[::-1], "p")
    assert {name: data for name, data in digest().items() if "lock" not in name} == {
        name: data for name, data in first.items() if "lock" not in name
    }


def test_two_logs_of_one_name_are_told_apart(here):
    log("random.log", line(1))
    Path("other").mkdir()
    shutil.copy("logs/random.log", "other/random.log")
    both = [Path("logs/random.log"), Path("other/random.log")]
    with pytest.raises(UsageError, match="are both named 'random'; rename one"):
        import_logs(both, "p")
    import_logs(both[:1], "p")
    with pytest.raises(UsageError, match="was imported before, have one name; .*delete .*random.json to replace it"):
        import_logs(both[1:], "p")
    (FOLDER / "reports" / "random.json").unlink()
    import_logs(both[1:], "p")
    assert len(programs()) == 1
    shutil.copy("other/random.log", "other/random.json")
    with pytest.raises(UsageError, match="was imported before, have one name"):
        import_logs([Path("other/random.json")], "p")


def test_a_log_of_another_target_is_refused_and_nothing_changes(here):
    import_logs([log("a.log", line(1))], "p")
    before = digest()
    with pytest.raises(
        DataError,
        match=r"no line of logs/b\.log can become a record of p \(line 1: its target 'llvm -keys=arm_cpu' is not",
    ):
        import_logs([log("b.log", line(1, target="llvm -keys=arm_cpu"))], "p")
    assert {name: data for name, data in digest().items() if "/b." not in name} == before
    assert [host for _, host in programs()] == ["llvm -keys=cpu"]
    mixed = log("c.log", line(1, target="llvm -keys=arm_cpu"), line(2))
    assert "1 records of 2 lines: 1 ok, 1 refused" in import_logs([mixed], "p")
    import_logs([mixed], "arm", "arm_cpu")
    assert programs("arm") == [(1, "llvm -keys=arm_cpu")]


def test_a_log_without_a_sound_line_says_what_is_wrong_with_the_first(here):
    old_format = {"i": ["llvm", "conv2d", [], {}, [], {}], "r": [[0.1], 0, 1, 1], "v": 0.1}
    with pytest.raises(DataError, match=r"no line of logs/a\.log .* \(line 1: not shaped as a line of Ansor"):
        import_logs([log("a.log", old_format)], "p")
    assert not FOLDER.exists()  # nobody is told of a platform p afterwards


def test_what_is_no_log_leaves_nothing(here):
    for name, content in (("empty.log", ""), ("text.log", "hello\n")):
        Path(name).write_text(content)
        with pytest.raises(DataError, match=f"{name} is"):
            import_logs([Path(name)], "p")
    for path in (Path("gone.log"), Path("logs")):
        with pytest.raises(UsageError):
            import_logs([path], "p")
    assert not FOLDER.exists()


@pytest.mark.parametrize("name", ["", ".", "../up", "a b", "a/b", "platform=x", "-p", "a" * 101])
def test_names_that_cannot_be_a_platforms(here, name):
    with pytest.raises(UsageError, match="cannot name a platform"):
        import_logs([log("a.log", line(1))], name)
    assert not Path("data").exists()


def test_a_hidden_log_is_read_again(here):
    said = import_logs([log(".hidden.log", line(1), line(2))], "p")
    assert said.startswith("hidden (AutoTVM): 2 records of 2 lines") and len(programs(files=["hidden"])) == 2
    with pytest.raises(UsageError, match="was imported before, have one name"):
        import_logs([log("hidden.log", line(1))], "p")


@pytest.mark.parametrize("name", ["a" * 101, "a\x1b[31m", "caf\udce9"])
def test_logs_whose_names_cannot_be_a_files(here, name):
    with pytest.raises(UsageError, match="^records cannot be filed under '") as raised:
        import_logs([log(f"{name}.log", line(1))], "p")
    assert str(raised.value).isprintable()
    assert not Path("data").exists()


def test_a_report_that_is_damaged_is_told(here):
    path = log("a.log", line(1))
    import_logs([path], "p")
    report = FOLDER / "reports" / "a.json"
    report.write_text(report.read_text().replace('"lines": 1', '"lines": 2'))
    with pytest.raises(DataError, match="a.json is damaged .its checksum does not fit.; delete it and import its log again"):
        import_logs([path], "p")


def test_a_pipe_is_no_log(here):
    os.mkfifo("pipe")
    with pytest.raises(UsageError, match="cannot read the log pipe .it is a pipe or a device"):
        import_logs([Path("pipe")], "p")


def test_a_torn_gzip_file_keeps_what_was_imported(here):
    path = log("a.log.gz", *(line(n) for n in range(200)))
    import_logs([path], "p")
    before = digest()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="damaged or cut off after line"):
        import_logs([path], "p")
    assert digest() == before


def test_a_log_that_was_compressed_since_is_the_same_log(here):
    path = log("a.log", line(1), line(2))
    import_logs([path], "p")
    path.with_suffix(".log.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    import_logs([path.with_suffix(".log.gz")], "p")
    assert len(programs()) == 2
    with pytest.raises(UsageError, match=r"cannot read the log logs/a\.log \(no such file"):
        import_logs([path], "p")


def test_a_second_import_into_a_platform_is_refused(here):
    path = log("a.log", line(1))
    FOLDER.mkdir(parents=True)
    with open(FOLDER / exchange.LOCK, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is writing into .*platform=p"):
            import_logs([path], "p")
    import_logs([path], "p")


KILLED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tcl_core import store
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace
whole = store.write_table
def stop(path, table, rows):
    if table == sys.argv[1]:
        print("here", flush=True)
        sys.stdin.read()
    return whole(path, table, rows)
store.write_table = stop
exchange.import_logs(Workspace(), [Path("logs/a.log")], "p")
"""


@pytest.mark.parametrize("table", ["tasks", "sketches"])
def test_a_killed_import_leaves_the_old_records_and_can_be_repeated(here, table):
    import_logs([log("a.log", line(1))], "p")
    old = programs()
    log("a.log", line(1), line(2, task=["dense.x86", [], {}]), autotvm_line())
    code = KILLED.format(path=[str(ROOT)])
    command = [sys.executable, "-c", code, table]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"here\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert programs() == old and len(list(imported_batches("p"))) == 1
    import_logs([Path("logs/a.log")], "p")
    assert len(programs()) == 3


FULL = """
import resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tcl_core.errors import PlatformError
from tcl_core.stages.exchange import import_logs
from tcl_core.stages.workspace import Workspace
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    import_logs(Workspace(), [Path("logs/a.log")], "p")
except PlatformError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_keeps_the_old_records(here):
    import_logs([log("a.log", line(1))], "p")
    old = programs()
    log("a.log", *(line(n, tile=1 + n % 50) for n in range(3000)))
    child = subprocess.run([sys.executable, "-c", FULL.format(path=[str(ROOT)])], capture_output=True, text=True, check=True)
    assert "cannot write" in child.stdout and "free some space" in child.stdout and programs() == old


# --- imported programs as samples ---


def test_samples_of_the_logs_that_one_asks_for(here):
    task = ["dense_pack.x86", [["TENSOR", [4, 32], "float32"], ["TENSOR", [10, 32], "float32"]], {}]
    import_logs([log("random.log", line(1), line(2, task=task)), log("searched.log", line(3, 16), line(4), line(5))], "p")
    (random,) = imported_batches("p", ["random"])
    (searched,) = imported_batches("p", ["searched"], hardware=[1.0] * 11)
    assert len(random) == 2 and len(searched) == 3 and searched.features.shape[1] == random.features.shape[1] + 1
    assert sorted(random.latencies_s) == pytest.approx([1.1, 2.1]) and len(set(random.tasks)) == 2
    assert set(searched.tasks) < set(random.tasks)  # numbered alike in every batch
    assert sum(len(batch) for batch in imported_batches("p")) == 5
    with pytest.raises(UsageError, match="unknown records file 'rando'"):
        list(imported_batches("p", ["rando"]))


def test_an_unknown_imported_platform_names_the_nearest(here):
    import_logs([log("a.log", line(1))], "ryzen-3700x")
    with pytest.raises(UsageError, match="unknown imported platform 'ryzen'.*did you mean 'ryzen-3700x'"):
        list(imported_batches("ryzen"))


def test_ansor_programs_are_samples_too(here):
    import_logs([log("a100.json", *(ansor_line(result=([0.5 + n], 0, 1, n)) for n in range(4)))], "a100")
    (samples,) = imported_batches("a100")
    assert len(samples) == 4 and np.isfinite(samples.latencies_s).all() and samples.task_names == ("matmul 512 64",)


def test_a_metaschedule_database_is_imported_and_encoded_as_programs_of_sketches(here, matmul):
    database = plain_database(here / "tuned")
    drawn = [(sketch, row) for sketch in matmul.sketches for row in matmul.sample(sketch, 3)]
    for number, (sketch, row) in enumerate(drawn):
        commit(database, matmul, matmul.space.materialise(sketch, row).trace, [0.5 + number])
    for given in ("tuned", f"tuned/{RECORDS}", f"tuned/{WORKLOADS}"):
        assert import_logs([Path(given)], "p") == f"tuned (MetaSchedule): {len(drawn)} records of {len(drawn)} lines: {len(drawn)} ok"
    (samples,) = imported_batches("p", hardware=[1.0] * 11)
    assert len(samples) == len(drawn) and sorted(samples.latencies_s) == [0.5 + n for n in range(len(drawn))]
    (task,) = store.read_table(FOLDER / "tasks.parquet", "tasks")
    assert task["task_key"] == matmul.task.key and samples.task_names == ("matmul 32x32 32x32 32x32",)


@pytest.mark.parametrize("turn", [1, -1])
def test_what_two_networks_call_differently_is_learned_from_both(here, matmul, turn):
    """As a ReLU and a bound, of which tasks of one structure are made: each tuning's programs are read, whichever came first."""
    for name, tiny in [("relu", matmul), ("bound", named_otherwise(matmul))][::turn]:
        database = plain_database(here / name)
        for number, row in enumerate(tiny.sample(tiny.sketches[0], 4), 1):
            commit(database, tiny, tiny.space.materialise(tiny.sketches[0], row).trace, [0.25 * number])
        assert exchange.keep_tuned(Workspace(), Path(name), "host-avx2").records == 4
    samples = exchange.tuned_samples(Workspace(), "host-avx2", [1.0] * 11)
    assert sorted(samples.latencies_s.tolist()) == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]
    model = catalogue.create("mamba", FitSettings(epochs=1)).fit(samples)
    assert np.isfinite(model.predict(samples)).all()


def test_a_tuned_networks_folder_is_named_by_itself(here, matmul):
    """Each has its database in a folder of the same name."""
    for name in ("fast", "faster"):
        (here / name).mkdir()
        (here / name / "report.json").touch()
        commit(
            plain_database(here / name / "database"),
            matmul,
            matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace,
            [0.5],
        )
    said = import_logs([Path("fast"), Path("faster/database")], "p").splitlines()
    assert [line.partition(" (")[0] for line in said] == ["fast", "faster"]


def test_a_log_that_was_renamed_is_not_there_twice(here):
    import_logs([log("a.log", line(1))], "p")
    report = FOLDER / "reports" / "a.json"
    (FOLDER / "reports" / "b.json").write_bytes(report.read_bytes())
    report.unlink()
    with pytest.raises(UsageError, match="a.log was imported as 'b' before; delete .*records/b.parquet and .*b.json first"):
        import_logs([Path("logs/a.log")], "p")


def test_a_log_may_follow_a_database_of_the_same_name(here, matmul):
    """As the refusal of the second one advises; tasks of the first are still in the tables."""
    commit(
        plain_database(here / "a"),
        matmul,
        matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace,
        [0.5],
    )
    import_logs([Path("a")], "p")
    with pytest.raises(UsageError, match="delete .*a.json to replace it"):
        import_logs([log("a.log", line(1), line(2))], "p")
    (FOLDER / "reports" / "a.json").unlink()
    assert import_logs([Path("logs/a.log")], "p") == "a (AutoTVM): 2 records of 2 lines: 2 ok"
    (samples,) = imported_batches("p")
    assert len(samples) == 2 and np.isfinite(samples.features).all()
