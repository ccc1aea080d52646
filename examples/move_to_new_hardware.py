"""Carry a cost model on to hardware of which hardly anything was measured.

The model of AVX2 ranks AVX-512's programs well as it is.  160 measurements on AVX-512 alone teach less than that; but together with
what the model knows, and what was measured on AVX2, they improve it.
"""

import numpy as np

import tcl_core as tcl

data = tcl.datasets.reference()
old, new = data.case("host-avx2").thinned(60, 16, 0), data.case("host-avx512").thinned(60, 16, 0)
model = tcl.Trained(tcl.Mamba().fit(tcl.teach(old.train)), data.hardware("host-avx2"))

few = np.random.default_rng(0).permutation(len(new.train))[:160]
others = np.setdiff1d(np.arange(len(new.train)), few)
moved = tcl.distill(
    model, new.train.take(few), new.train.take(others),  # of the others only the tokens are read
    source_latencies_s=old.train.latencies_s[np.concatenate([few, others])],
)  # fmt: skip
alone = tcl.Mamba().fit(tcl.teach(new.train.take(few)))
for name, which in {"AVX2's, as it is": model, "carried on with 160 measurements": moved, "160 measurements alone": alone}.items():
    found = tcl.figures(which.predict(new.test), new.test)
    print(f"{name:34s} pairs ranked right {found['pairs']:.1%}, u16 {found['u16']:.3f}")
