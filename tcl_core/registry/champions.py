"""The champion of a platform, which compilers load: finding it, promotion and rollback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tcl_core.errors import DataError, NoChampionError, RegistryError
from tcl_core.registry import local_store, model_files
from tcl_core.registry.aliases import MISSING, PREVIOUS, WITHDRAWN, crown, now, settle, version_at
from tcl_core.registry.connection import NoRegistry, RegistryAway, opened, pages
from tcl_core.registry.names import CHAMPION, model_name, pinned, platform_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from tcl_core.models.cost_model import CostModel

PROMOTION, ROLLBACK = "promotion", "rollback"  # tags: the last decision on a version, and why
HOST = "holdout.host"  # tag: the host of the held-out programs that judged a version


def champion_version(platform: str) -> int | None:
    """The version that carries the alias `champion`; None while no version does."""
    try:
        with opened() as client:
            return version_at(client, model_name(platform), CHAMPION)
    except NoRegistry:
        return None


def champion(platform: str) -> tuple[int, Path]:
    """Version and model folder of a platform's champion, or of the version that ``PLATFORM:NUMBER`` names.

    A version from a server is fetched once and cached; while the server is away, the version that it last gave is used,
    with a warning that names it and its age.

    Raises NoChampionError if there is no champion; RegistryError for an unknown version; DataError if its files are not
    those that were registered, or if it reads other tokens than this version of TCL makes; UsageError for a bad NUMBER.
    """
    platform, pin = pinned(platform)
    if not (meant := platform_of(platform)):
        return _champion(platform, pin)
    try:
        return _champion(platform, pin)  # a platform's own name may start like a model's
    except RegistryError:  # then it is the name of a registered model
        return _champion(meant, pin)


def _champion(platform: str, pin: int | None) -> tuple[int, Path]:
    try:
        with opened() as client:
            number, folder = _given(client, platform, pin)
    except NoRegistry as none:
        raise NoChampionError(f"{platform} has no champion: {none}") from None
    except RegistryAway as away:
        number, folder = model_files.kept(platform, pin, away)
    if folder is None:
        others = platforms_with_champion()
        there = f"; there are champions of {', '.join(others)}" if others else ""
        raise NoChampionError(f"{platform} has no champion; run: tcl register and then: tcl promote{there}")
    model_files.check_tokens(folder, f"version {number} of {model_name(platform)}")
    return number, folder


def load_champion(platform: str) -> CostModel:
    """Load a platform's champion, or the version ``PLATFORM:NUMBER``, ready to rank programs; for compilers to call."""
    from tcl_core.models.catalogue import load

    return load(champion(platform)[1])


def platforms_with_champion() -> list[str]:
    """Names of the platforms that have a champion; while the server is away, of those whose champion is cached."""
    try:
        with opened() as client:
            models = [model for model in pages(client.search_registered_models) if CHAMPION in model.aliases]
    except RegistryAway:
        if not (kept := model_files.platforms_kept()):
            raise
        return kept
    return sorted(filter(None, (platform_of(model.name) for model in models)))


def promote(platform: str, version: int, better: bool, reason: str, against: int | None) -> bool:
    """Make ``version`` the champion if it is ``better``; tag it with the reason either way.  Returns whether it moved.

    against  the champion that ``version`` was compared with, None where there was none.  If another promotion moved
             the alias meanwhile, the verdict is void and RegistryError says so: of two at once, one wins.

    Raises RegistryError too where it is better, but the two were judged on different hosts (``HOST``).
    """
    name = model_name(platform)
    with opened(alone=True) as client:
        present = version_at(client, name, CHAMPION)
        if present != against:
            raise RegistryError(
                f"the champion of {platform} changed from version {against} to {present} while version {version} was "
                f"compared with it; run again: tcl promote --platform {platform}"
            )
        if better:
            _check_host(client, platform, version, against)
        # The reason first: no champion lacks one, whenever this is killed.
        client.set_model_version_tag(name, str(version), PROMOTION, f"{'promoted' if better else 'kept back'}: {reason}")
        if better:
            crown(client, name, version, against)
        settle(client, name)
    return better


def rollback(platform: str, reason: str, to: int | None = None) -> tuple[int, int]:
    """Make the previous champion, or the version ``to``, champion again; returns its number and that of the one it replaces.

    The present champion becomes `previous` and is tagged as withdrawn: promotion refuses it from then on (``withdrawn``);
    another rollback can bring it back.

    Raises RegistryError where there is no champion, no previous one or no such version, or the previous one is of another host;
    DataError where its files are not those that were registered, or it reads other tokens than this version of TCL makes.  The
    champion is then unchanged.
    """
    name = model_name(platform)
    with opened(alone=True) as client:
        present = version_at(client, name, CHAMPION)
        if present is None:
            raise RegistryError(f"{platform} has no champion to go back from; nothing was changed; run: tcl promote --platform {platform}")
        settle(client, name)  # a promotion may have been killed before `previous` followed
        target = version_at(client, name, PREVIOUS) if to is None else to
        if target is None:
            raise RegistryError(
                f"{platform} has no champion before version {present} to go back to; nothing was changed; "
                f"to go to another version: tcl rollback --platform {platform} --to NUMBER"
            )
        if target == present:
            raise RegistryError(f"version {target} of {name} is the champion already; nothing was changed")
        found = _version(client, platform, target)
        if to is None:  # whoever names a version means it
            _check_host(client, platform, target, present)
        model_files.check_tokens(model_files.folder_of(client, platform, found), f"version {target} of {name}")
        told = f"{now()}: {reason}"
        client.set_model_version_tag(name, str(target), ROLLBACK, f"{told} (in the place of version {present})")
        client.set_model_version_tag(name, str(present), WITHDRAWN, told)
        crown(client, name, target, present)
        for twin in _withdrawn_like(client, platform, found):
            client.delete_model_version_tag(name, str(twin.version), WITHDRAWN)
        settle(client, name)
    return target, present


def of_another_host(platform: str, version: int, champion: int) -> str:
    """Why a version and a champion cannot be compared: they were judged on different hosts; empty if they were not, or one does not tell.

    Two projects may share a registry and a platform's name.
    """
    with opened() as client:
        return _of_another_host(client, platform, version, champion)


def _of_another_host(client: MlflowClient, platform: str, version: int, champion: int) -> str:
    mine, other = (_version(client, platform, number).tags.get(HOST) for number in (version, champion))
    if not (mine and other) or mine == other:
        return ""
    return (
        f"the champion of {platform}, version {champion}, was judged on {other}, and version {version} on {mine}; give the platform "
        "another name in params.yaml, or set MLFLOW_TRACKING_URI to a registry of this project's own; where nothing needs that "
        f"champion any more: tcl rollback --platform {platform} --to {version}"
    )


def _check_host(client: MlflowClient, platform: str, version: int, champion: int | None) -> None:
    if champion is not None and (why := _of_another_host(client, platform, version, champion)):
        raise RegistryError(why)


def withdrawn(platform: str, version: int) -> str | None:
    """When and why a rollback withdrew a version, or one with the same weights; None if none did or another undid it.

    A training that reaches the same weights again, perhaps with other code, makes another version.
    """
    with opened() as client:
        alike = _withdrawn_like(client, platform, _version(client, platform, version))
        return alike[0].tags[WITHDRAWN] if alike else None


def _withdrawn_like(client: MlflowClient, platform: str, version: ModelVersion) -> list[ModelVersion]:
    """The withdrawn ones among a version and others with its weights; others whose files are damaged are left out."""
    found = [each for each in pages(client.search_model_versions, f"name = '{model_name(platform)}'") if WITHDRAWN in each.tags]
    same = [each for each in found if each.version == version.version]
    if others := [each for each in found if each.version != version.version]:
        mine = model_files.weights_digest(model_files.folder_of(client, platform, version))
        for each in others:
            with suppress(DataError):
                same += [each] if model_files.weights_digest(model_files.folder_of(client, platform, each)) == mine else []
    return same


def _given(client: MlflowClient, platform: str, pin: int | None) -> tuple[int, Path | None]:
    """Number and folder of the champion, or of the version ``pin``; 0 and None where there is no champion."""
    number = pin or version_at(client, model_name(platform), CHAMPION)
    if number is None:
        return 0, None
    version = _version(client, platform, number)
    folder = model_files.folder_of(client, platform, version)
    if local_store.local_store() is None:
        model_files.note(version, pin)
    return number, folder


def _version(client: MlflowClient, platform: str, number: int):
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(model_name(platform), str(number))
    except MlflowException as error:
        if error.error_code not in MISSING:
            raise
        raise RegistryError(f"there is no version {number} of {model_name(platform)}; tcl models lists what there is") from None
