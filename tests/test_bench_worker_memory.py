"""What the memory comparison counts, on series that are known."""

from __future__ import annotations

from worker_memory import LEAKY, longest_lived, table, with_leaks

from tcl_core.measure.job import Job


def test_the_worker_that_measured_most_is_the_one_that_is_shown():
    assert longest_lived([7, 8, 8, 8, 9], [100, 300, 310, 320, 90]) == [300, 310, 320]


def test_every_so_many_programs_one_leaks():
    jobs = with_leaks([Job(f"task-{n}", "{}") for n in range(2 * (LEAKY - 1))], 1 << 20)
    assert [n for n, job in enumerate(jobs) if job.task_key == "leaks"] == [LEAKY - 1, 2 * LEAKY - 1]


def test_the_table_tells_failures_and_workers():
    found = {"sound": {"programs": 400, "failed": 1, "resident_mib": [300, 500, 310, 330], "workers": [1, 2, 2, 2]}}
    assert table(found).splitlines()[-1] == ("| sound | 400 | 1 | 2 | 500 MiB | 300 programs | 500 MiB | 310 MiB | 330 MiB |")
