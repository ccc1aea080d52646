"""One run of the whole pipeline on this machine: what was measured, learned and tuned.

    python bench/pipeline.py [--quick]

Brings the pipeline up to date first (nothing to do after `make run`); --quick reports the last run as it is.  The tables are of this
run; the times of collecting are kept for every machine that reported any, for `bench/scale.py` to compare with its simulation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from _tables import RESULTS, ROOT, into_document, markdown, save

from tcl_core.platforms import host_fingerprint

ALONE = ("zero-shot", "own data only")
COLLECT = "collect@"


def table(summary: dict) -> str:
    judged = [p for p in summary["platforms"].values() if "skipped" not in p]
    # A summary by an earlier version has no peers' pairs.
    beside = {of: [peer for peer in ALONE if any(peer in p.get(of, {}) for p in judged)] for of in ("peers_pairs", "peers")}
    kinds = (("pairs ranked right", "pairwise_accuracy", "peers_pairs"), ("top-1", "top1", "peers"))
    heads = [head for what, _, of in kinds for head in (what, *(f"{what} of {peer}" for peer in beside[of]))]
    rows = []
    for name, p in summary["platforms"].items():
        if "skipped" in p:
            rows.append([name, f"skipped: {p['skipped']}", *[""] * (len(heads) + 2)])
            continue
        cells = [cell for _, own, of in kinds for cell in (p[own], *(p.get(of, {}).get(peer) for peer in beside[of]))]
        known = ["" if cell is None else f"{cell:.3f}" for cell in (*cells, p["random_top1"], p["top5"])]
        rows.append([name, p["programs_measured"], *known])
    ranking = markdown(["platform", "programs measured", *heads, "top-1 of a random ranking", "top-5"], rows)
    tuned = summary["tuned"]
    known = ("untuned_ms", "tuned_ms", "pytorch_ms", "compile_ms")
    times = [f"{tuned[key]:.2f} ms" if tuned.get(key) else "-" for key in known]
    tuning = markdown(
        ["network", "platform", "programs measured", "untuned", "tuned with the champion", "PyTorch eager", "torch.compile"],
        [[tuned["network"], tuned["platform"], tuned["trials"], *times]],
    )
    minutes = sum(summary["seconds"].values()) / 60
    return f"{ranking}\n\n{tuning}\n\nTime in stages: {minutes:.1f} minutes."


def collected(summary: dict) -> dict[str, float]:
    """Platform -> seconds that collecting its training programs took."""
    return {name.removeprefix(COLLECT): seconds for name, seconds in summary["seconds"].items() if name.startswith(COLLECT)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="report the last run as it is")
    if not parser.parse_args().quick:
        subprocess.run([sys.executable, "-m", "flows.pipeline"], cwd=ROOT, check=True)
    summary = json.loads((ROOT / "data" / "reports" / "summary.json").read_text())
    kept = RESULTS / "pipeline.json"
    before = json.loads(kept.read_text())["collected_s"] if kept.exists() else {}
    save("pipeline", {"summary": summary, "collected_s": {**before, host_fingerprint(): collected(summary)}}, "python bench/pipeline.py")
    text = table(summary)
    into_document("pipeline", text)
    print(text)


if __name__ == "__main__":
    main()
