"""The aliases `candidate`, `champion` and `previous` of a registered model; `champion` decides, the others follow.

Moving `champion` is the one step that counts.  Before a version becomes champion it is tagged with the champion that it
replaces, from which ``settle`` derives `previous` and `candidate`: whatever is killed on the way, the next writer sets
them right.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tcl_core.registry.names import CANDIDATE, CHAMPION, PREVIOUS

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Tags of a version: since when it is champion, which version it replaced, and why it was withdrawn, while it is.
SINCE, BEFORE, WITHDRAWN = "champion.since", "champion.before", "withdrawn"
NOBODY = "none"
MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # what MLflow says of a name, version or alias that is not there


def version_at(client: MlflowClient, name: str, alias: str) -> int | None:
    """The version that carries an alias; None where there is no such model or alias."""
    from mlflow.exceptions import MlflowException

    try:
        return int(client.get_model_version_by_alias(name, alias).version)
    except MlflowException as error:
        if error.error_code in MISSING:
            return None
        raise


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def crown(client: MlflowClient, name: str, version: int, former: int | None) -> None:
    """Make a version champion in place of ``former`` (None: there was no champion)."""
    client.set_model_version_tag(name, str(version), SINCE, now())
    client.set_model_version_tag(name, str(version), BEFORE, str(former or NOBODY))
    client.set_registered_model_alias(name, CHAMPION, str(version))


def settle(client: MlflowClient, name: str, registered: int | None = None) -> None:
    """Set `previous` and `candidate` right, or delete them; ``registered`` is the version just registered, if any.

    The champion loses the tag ``WITHDRAWN``, which a rollback that was killed before it moved the alias left on it.
    """
    aliases = {alias: int(version) for alias, version in client.get_registered_model(name).aliases.items()}
    champion = aliases.get(CHAMPION)
    tags = {} if champion is None else client.get_model_version(name, str(champion)).tags
    if WITHDRAWN in tags:
        client.delete_model_version_tag(name, str(champion), WITHDRAWN)
    candidate = aliases.get(CANDIDATE) if registered in (None, champion) else registered
    wanted = {CANDIDATE: candidate, PREVIOUS: _before(client, name, tags.get(BEFORE), aliases.get(PREVIOUS))}
    for alias, version in wanted.items():
        if version is None or version == champion:
            if alias in aliases:
                client.delete_registered_model_alias(name, alias)
        elif aliases.get(alias) != version:
            client.set_registered_model_alias(name, alias, str(version))


def _before(client: MlflowClient, name: str, said: str | None, known: int | None) -> int | None:
    """The version that the champion's tag says it replaced, None if none or deleted; ``known`` without a tag, as TCL did not promote it."""
    from mlflow.exceptions import MlflowException

    if said is None or said == NOBODY:
        return known if said is None else None
    with suppress(MlflowException):  # it was deleted since
        return int(client.get_model_version(name, said).version)
    return None
