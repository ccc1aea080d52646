"""Train a cost model on measured programs, and see how it ranks those of networks that it has not seen.

Boosted trees learn from the measurements first; the small network then learns the scores that they give, of measured programs
and, where there are some, of others that nobody measured.
"""

import tempfile
from pathlib import Path

import tcl_core as tcl

data = tcl.datasets.reference()
case = data.case("host-avx512").thinned(tasks=40, programs=16, seed=0)  # a part, so that it takes seconds

model = tcl.Mamba().fit(tcl.teach(case.train))
trees = tcl.Trees().fit(case.train)

for name, scores in {"mamba": model.predict(case.test), "trees": trees.predict(case.test)}.items():
    found = tcl.figures(scores, case.test)
    print(
        f"{name:6s} ranks {found['pairs']:.1%} of the pairs right; its first choice of 16 programs has {found['u16']:.1%} of the best one's speed"
    )

file = Path(tempfile.mkdtemp()) / "mine.safetensors"
tcl.Trained(model, data.hardware("host-avx512")).save(file)
again = tcl.load(file)
assert (again.predict(case.test) == model.predict(case.test)).all()
print(f"{file.stat().st_size / 1e6:.1f} MB as one file, which tcl.load reads")
