"""Cron expressions: what is refused, and that they mean what Prefect takes them for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from tcl_core.crontab import check_cron, next_time
from tcl_core.errors import UsageError

NOW = datetime(2027, 3, 27, 12, 0, tzinfo=UTC)  # a Saturday; the next day clocks go forward in Berlin


@pytest.mark.parametrize(
    ("cron", "timezone", "expected"),
    [
        ("0 2 * * *", "UTC", "2027-03-28T02:00:00+00:00"),
        ("30 */6 * * *", "UTC", "2027-03-27T12:30:00+00:00"),
        ("15 4 * * mon-fri", "America/New_York", "2027-03-29T04:15:00-04:00"),
        ("0 5 1 jan *", "UTC", "2028-01-01T05:00:00+00:00"),
        ("0 5 */2 * *", "UTC", "2027-03-29T05:00:00+00:00"),
        ("0 5 * * wed", "UTC", "2027-03-31T05:00:00+00:00"),
        ("0 9 * * *", "Europe/Berlin", "2027-03-28T09:00:00+02:00"),
    ],
)
def test_the_next_time_is_prefects(cron, timezone, expected):
    from prefect.server.schemas.schedules import CronSchedule

    found = next_time(cron, timezone, "here", NOW)
    assert found.isoformat() == expected
    assert asyncio.run(CronSchedule(cron=cron, timezone=timezone).get_dates(n=1, start=NOW)) == [found]


@pytest.mark.parametrize(
    ("cron", "timezone", "told"),
    [
        ("0 25 * * *", "UTC", "schedules.a.cron is '0 25 * * *', no cron expression (bad hour"),
        ("0 4 * * 5L", "UTC", "is '0 4 * * 5L', which readers of cron take in different ways (not all know L, W and #)"),
        ("0 4 LW * *", "UTC", "not all know L, W and #"),
        ("0 4 */2 * mon", "UTC", "in different ways (of two kinds of days some want both, others one); write it otherwise"),
        ("0 2 * * H", "UTC", "no cron expression (bad day-of-week"),
        ("tomorrow", "UTC", "schedules.a.cron is 'tomorrow', 1 fields; it must be five"),
        ("0 0 2 * * *", "UTC", "6 fields; it must be five"),
        ("@daily", "UTC", "1 fields"),
        ("0 0 31 2 *", "UTC", "schedules.a.cron is '0 0 31 2 *', "),
        ("0 2 * * *", "Europe/Berlim", "time zone 'Europe/Berlim', which this system does not know"),
        ("0 2 * * *", "../passwd", "time zone '../passwd'"),
        ("0 2 * * *", "Europe", "time zone 'Europe'"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(cron, timezone, told):
    with pytest.raises(UsageError) as refused:
        check_cron(cron, timezone, "schedules.a.cron")
    assert told in str(refused.value) and "\n" not in str(refused.value)
