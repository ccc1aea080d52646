"""One run of the whole pipeline on this machine: what was measured, learned and tuned.

    python bench/pipeline.py [--quick]

Brings the pipeline up to date first (nothing to do after `make run`); --quick reports the last run as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys

from _tables import RESULTS, ROOT, arguments, into_document, markdown, save


def table(summary: dict) -> str:
    rows = []
    for name, p in summary["platforms"].items():
        if "skipped" in p:
            rows.append([name, f"skipped: {p['skipped']}", "", "", "", ""])
            continue
        figures = [f"{p[key]:.3f}" for key in ("top1", "top5", "random_top1", "pairwise_accuracy")]
        rows.append([name, p["programs_measured"], *figures])
    ranking = markdown(["platform", "programs measured", "top-1", "top-5", "top-1 of a random ranking", "pairs ranked right"], rows)
    tuned = summary["tuned"]
    known = ("untuned_ms", "tuned_ms", "pytorch_ms", "compile_ms")
    times = [f"{tuned[key]:.2f} ms" if tuned.get(key) else "-" for key in known]
    tuning = markdown(
        ["network", "platform", "programs measured", "untuned", "tuned with the champion", "PyTorch eager", "torch.compile"],
        [[tuned["network"], tuned["platform"], tuned["trials"], *times]],
    )
    minutes = sum(summary["seconds"].values()) / 60
    return f"{ranking}\n\n{tuning}\n\nTime in stages: {minutes:.1f} minutes."


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="report the last run as it is")
    given = parser.parse_args()
    if given.smallest:  # the run that was reported last
        summary = json.loads((RESULTS / "pipeline.json").read_text())["summary"]
    else:
        if not given.quick:
            subprocess.run([sys.executable, "-m", "flows.pipeline"], cwd=ROOT, check=True)
        summary = json.loads((ROOT / "data" / "reports" / "summary.json").read_text())
    save("pipeline", {"summary": summary}, "python bench/pipeline.py")
    text = table(summary)
    into_document("pipeline", text)
    print(text)


if __name__ == "__main__":
    main()
