"""`tcl models`: each platform's champion; `tcl lineage`: from a model to what it was made of, and from data or a commit to models.

Works anywhere in a project, whichever platforms its params.yaml has; revisions of Git and DVC are this project's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from tcl_core import provenance, registry
from tcl_core.errors import DataError, UsageError, unknown_name
from tcl_core.files import shown
from tcl_core.registry import CANDIDATE, CHAMPION, PREVIOUS, Version
from tcl_core.settings import yaml_format
from tcl_core.stages.promotion import SHORT, check_registered, figures_text
from tcl_core.stages.workspace import Workspace, with_registry

LOCK = "dvc.lock"
FIGURES = {"pairs": "pairwise_accuracy", "u16": "subset_top_1", "top_1": "top_1"}  # as listed -> as registered
DATA_TAGS = {"data.hash": "records", "data.dvc": "records", "model.hash": "model", "model.dvc": "model", "holdout.hash": "held-out records"}
LEAST_DIGITS = 6  # of an abbreviated hash


@with_registry
def list_models(workspace: Workspace, platform: str | None = None) -> dict[str, Any]:
    """Champion, candidate and previous of each platform, with their figures and origin, for JSON and ``models_text``.

    Raises as ``check_registered``.
    """
    found = registry.versions() if registry.is_there() else []
    known = sorted({version.platform for version in found})
    if platform is not None:
        check_registered(workspace, platform, known)
    rows = []
    for name in known if platform is None else [platform]:
        mine = [version for version in found if version.platform == name]
        at = {alias: version for version in mine for alias in version.aliases}
        rows += [_row(at[role], role, at.get(CHAMPION)) for role in (CHAMPION, CANDIDATE, PREVIOUS) if role in at]
    return {"registry": registry.where(), "models": rows}


def _row(version: Version, role: str, champion: Version | None) -> dict[str, Any]:
    figures = registry.logged(version)[1]
    # A candidate has its role since its registration; the champion and the previous one since the champion's promotion.
    since = version.registered if role == CANDIDATE else (champion or version).tags.get(registry.SINCE)
    return {
        "platform": version.platform,
        "role": role,
        "version": version.number,
        "since": since,
        **{name: figures.get(key) for name, key in FIGURES.items()},
        "data": version.tags.get("data.hash"),
        "commit": version.tags.get("git.commit"),
        "dirty": version.tags.get("git.dirty"),
        "decided": version.tags.get(registry.PROMOTION),
        "rolled_back": version.tags.get(registry.ROLLBACK),
        "withdrawn": version.tags.get(registry.WITHDRAWN),
    }


def models_text(listed: Mapping[str, Any]) -> str:
    if not listed["models"]:
        return f"the registry at {listed['registry']} has no models yet; run: tcl register and then: tcl promote"
    width = max(14, *(len(row["platform"]) for row in listed["models"]))
    lines = [
        f"{'platform':{width}s} {'role':9s} {'version':>7s}  {'since':25s} {'pairs':>6s} {'U16':>6s} {'top-1':>6s}  {'data':12s}  commit"
    ]
    for row in listed["models"]:
        figures = " ".join(f"{'-' if row[name] is None else f'{row[name]:.3f}':>6s}" for name in FIGURES)
        changed = "" if row["dirty"] in (None, "false") else " (changed)"
        lines.append(
            f"{row['platform']:{width}s} {row['role']:9s} {row['version']:7d}  {row['since'] or '-':25s} {figures}  "
            f"{(row['data'] or '-')[:SHORT]:12s}  {(row['commit'] or '-')[:SHORT]}{changed}"
        )
    return "\n".join([*lines, f"registry: {listed['registry']}"])


# --- lineage ---


@with_registry
def lineage(workspace: Workspace, asked: str) -> dict[str, Any]:
    """Look up what ``asked`` names, for JSON and ``lineage_text``.

    asked  a platform (its champion), PLATFORM:NUMBER, PLATFORM:ALIAS; a hash of records or of a model, ours or DVC's, or its
           first digits; or a revision of Git, whose dvc.lock in the workspace names data and models

    Raises UsageError for a name that is none of these, DataError for a dvc.lock that cannot be read.
    """
    if not asked.strip():
        raise UsageError("the model is an empty name; give a platform such as host-avx2, PLATFORM:NUMBER, a hash, or a commit")
    versions = registry.versions() if registry.is_there() else []
    platform, _, which = asked.partition(":")
    platforms = sorted({version.platform for version in versions})
    name = platform if platform in platforms else platform.removeprefix(registry.model_name(""))
    if name in platforms:
        return {"kind": "model", **_of_model(_chosen(name, which or CHAMPION, versions), versions)}
    if found := _of_hash(asked, versions):
        return {"kind": "data", "asked": asked, "versions": found}
    option = asked.startswith("-")  # Git would take it for an option
    if not option and (commit := provenance.git("rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}", folder=workspace.root)):
        return {"kind": "revision", "asked": asked, "commit": commit, "versions": _of_commit(commit, versions, workspace.root)}
    raise unknown_name(
        "model, hash or revision", shown(asked), platforms, f"the registry at {registry.where()}, its data and Git's history"
    )


def _chosen(platform: str, which: str, versions: Sequence[Version]) -> Version:
    """The version of a platform with a number or an alias."""
    mine = [version for version in versions if version.platform == platform]
    for version in mine:
        if which in (str(version.number), *version.aliases):
            return version
    known = [*sorted({alias for version in mine for alias in version.aliases}), *(str(version.number) for version in mine)]
    raise unknown_name("version or alias", shown(which), known, registry.model_name(platform))


def _of_model(version: Version, versions: Sequence[Version]) -> dict[str, Any]:
    """Everything that a version was made of, and the versions that its model was distilled from, nearest first."""
    parameters, figures = registry.logged(version)
    models = {other.tags["model.hash"]: other for other in versions if "model.hash" in other.tags}
    before: list[Version] = []
    while (earlier := models.get((before[-1] if before else version).tags.get("model.before", ""))) and earlier not in before:
        before.append(earlier)
    tags = version.tags
    return {
        **_named(version),
        "registered": version.registered,
        "champion_since": tags.get(registry.SINCE),
        "decided": tags.get(registry.PROMOTION),
        "records": {"folder": f"data/records/platform={version.platform}", "dvc": tags.get("data.dvc"), "sha256": tags.get("data.hash")},
        "held_out": tags.get("holdout.hash"),
        "model": {"dvc": tags.get("model.dvc"), "sha256": tags.get("model.hash")},
        "goes_on_from": [_named(earlier) for earlier in before],
        "stage": tags.get("dvc.stage"),
        "commit": tags.get("git.commit"),
        "dirty": tags.get("git.dirty"),
        "flow_run": tags.get("prefect.flow_run_id"),
        "host": tags.get("host"),
        "versions": {key.removesuffix(".version"): value for key, value in sorted(tags.items()) if key.endswith(".version")},
        "figures": figures,
        "parameters": parameters,
    }


def _of_hash(asked: str, versions: Iterable[Version]) -> list[dict[str, Any]]:
    """Versions with a hash that starts with ``asked``, each with what has that hash: records, model, held-out records."""
    digits = asked.lower().removesuffix(".dir")
    if not re.fullmatch(f"[0-9a-f]{{{LEAST_DIGITS},64}}", digits):
        return []
    found = []
    for version in versions:
        if same := {what for tag, what in DATA_TAGS.items() if version.tags.get(tag, "").startswith(digits)}:
            found.append({**_named(version), "same": sorted(same)})
    return found


def _of_commit(commit: str, versions: Iterable[Version], project: Path) -> list[dict[str, Any]]:
    """Versions made with a commit's code, or whose records or model are those that its dvc.lock names."""
    locked = _locked(commit, project)
    code = provenance.git("log", "-1", "--format=%H", commit, "--", ".", folder=provenance.CODE)  # as in a version's tag
    found = []
    for version in versions:
        folders = {
            "records": (f"data/records/platform={version.platform}", "data.dvc"),
            "model": (f"data/models/{version.platform}", "model.dvc"),
        }
        same = [what for what, (folder, tag) in folders.items() if folder in locked and locked[folder] == version.tags.get(tag)]
        if code and version.tags.get("git.commit") == code:
            changed = version.tags.get("git.dirty", "false")
            same.append("code" if changed in ("false", "unknown") else f"code but for {changed}")
        if same:
            found.append({**_named(version), "same": same})
    return found


def _locked(commit: str, project: Path) -> dict[str, str]:
    """Output -> its MD5 in a commit's dvc.lock; empty where the commit has none."""
    text = provenance.git("show", f"{commit}:./{LOCK}", folder=project)
    try:
        stages = (yaml_format(round_trip=False).load(text) or {}).get("stages", {})
        return {out["path"]: str(out["md5"]) for stage in stages.values() for out in stage.get("outs", ()) if "md5" in out}
    except (YAMLError, AttributeError, TypeError, ValueError, KeyError) as error:
        why = shown((str(error).splitlines() or ["it is no lock"])[0])
        raise DataError(f"{LOCK} of commit {commit[:SHORT]} cannot be read ({why}); name another revision") from None


def _named(version: Version) -> dict[str, Any]:
    return {
        "platform": version.platform,
        "version": version.number,
        "aliases": list(version.aliases),
        "model_name": registry.model_name(version.platform),
    }


def lineage_text(found: Mapping[str, Any]) -> str:
    if found["kind"] == "model":
        return _model_text(found)
    what = f"commit {found['commit'][:SHORT]}" if found["kind"] == "revision" else found["asked"]
    if not found["versions"]:
        return f"no registered model has the code of {what}, or the records or the model that its {LOCK} names"
    return "\n".join([f"of {what}:", *(f"  {_called(version)}: the same {' and '.join(version['same'])}" for version in found["versions"])])


def _model_text(found: Mapping[str, Any]) -> str:
    records, model, known = found["records"], found["model"], lambda value: value or "unknown"
    changed = {"false": "nothing changed since", "unknown": "", None: ""}.get(found["dirty"], f"changed since: {found['dirty']}")
    lines = {
        "registered": found["registered"] + (f", champion since {found['champion_since']}" if found["champion_since"] else ""),
        "decided": known(found["decided"]),
        "records": f"{records['folder']}: DVC {known(records['dvc'])}, SHA-256 {known(records['sha256'])}",
        "held out": known(found["held_out"]),
        "model": f"DVC {known(model['dvc'])}, SHA-256 {known(model['sha256'])}",
        "goes on from": ", ".join(map(_called, found["goes_on_from"])) or "nothing registered",
        "stage": known(found["stage"]),
        "commit": f"{known(found['commit'])}{f' ({changed})' if changed else ''}",
        "flow run": known(found["flow_run"]),
        "host": known(found["host"]),
        "versions": ", ".join(f"{name} {value}" for name, value in found["versions"].items()) or "unknown",
        "figures": figures_text(found["figures"]),
        "parameters": ", ".join(f"{name} {value}" for name, value in sorted(found["parameters"].items())) or "unknown",
    }
    return "\n".join([_called(found), *(f"  {name:13s} {text}" for name, text in lines.items())])


def _called(version: Mapping[str, Any]) -> str:
    aliases = f" ({', '.join(version['aliases'])})" if version["aliases"] else ""
    return f"{version['model_name']} version {version['version']}{aliases}"
