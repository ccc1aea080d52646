"""Cron expressions as schedules use them: five fields, in a time zone.  Knows nothing of what is scheduled."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tcl_core.errors import UsageError
from tcl_core.files import shown

FIELDS = "minute hour day-of-month month day-of-week"


def check_cron(cron: str, timezone: str, where: str) -> None:
    """Raise UsageError for an unknown time zone, and as ``next_time``; messages name ``where`` the expression stands."""
    try:
        ZoneInfo(timezone)
    except (KeyError, OSError, ValueError):  # an unknown zone; a folder of the zone database; a path that leaves it
        raise UsageError(
            f"{where} has the time zone '{shown(timezone)}', which this system does not know; write one such as UTC or Europe/Berlin"
        ) from None
    next_time(cron, timezone, where)


def _read_otherwise(words: list[str]) -> str:
    """Why Prefect's cron parser may read the expression otherwise than this one; "" if it does not."""
    day, weekday = words[2], words[4]
    if re.search("[LW]", day.upper()) or re.search("[L#]", weekday.upper()):
        return "not all know L, W and #"
    if any(field.startswith("*/") for field in (day, weekday)) and "*" not in (day, weekday):
        return "of two kinds of days some want both, others one"
    return ""


def next_time(cron: str, timezone: str, where: str, after: datetime | None = None) -> datetime:
    """Next time at which the expression is due, in its time zone.

    Raises UsageError for an expression that is invalid, that cron parsers read in different ways, or that is never due.
    """
    from cronsim import CronSim, CronSimError

    words = cron.split()
    if len(words) != 5:  # some readers take a sixth for seconds, but not all in the same place
        raise UsageError(f"{where} is '{shown(cron)}', {len(words)} fields; it must be five ({FIELDS}), such as 0 2 * * *")
    if reason := _read_otherwise(words):
        raise UsageError(f"{where} is '{shown(cron)}', which readers of cron take in different ways ({reason}); write it otherwise")
    try:
        return next(CronSim(" ".join(words), (after or datetime.now(UTC)).astimezone(ZoneInfo(timezone))))
    except CronSimError as error:
        why = str(error)[:1].lower() + str(error)[1:]
        raise UsageError(f"{where} is '{shown(cron)}', no cron expression ({why}); write {FIELDS}, such as 0 2 * * *") from None
    except StopIteration:
        raise UsageError(f"{where} is '{shown(cron)}', a time that never comes; write {FIELDS}, such as 0 2 * * *") from None
