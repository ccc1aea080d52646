"""A trained model in plain TVM: as the cost model of MetaSchedule's own search, or as the search itself.

With a promoted model it is `tcl.cost_model("host-avx512")`; here a small one is trained first.
"""

import logging
import tempfile

import tcl_core as tcl
from tcl_core.compat import load_tvm, make_target, meta_schedule

logging.disable(logging.WARNING)
data = tcl.datasets.reference()
case = data.case("host-avx2").thinned(tasks=30, programs=12, seed=0)
model = tcl.Trained(tcl.Mamba().fit(tcl.teach(case.train)), data.hardware("host-avx2"))

tvm, ms = load_tvm(), meta_schedule()  # tvm.s_tir.meta_schedule, whose stock import takes 17 seconds more
te = tvm.te
a, b = te.placeholder((128, 256), name="a"), te.placeholder((256, 128), name="b")
k = te.reduce_axis((0, 256), name="k")
c = te.compute((128, 128), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
target = make_target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})

for name, how in {
    "cost model": {"cost_model": tcl.cost_model(model)},
    "search": {"strategy": tcl.search_strategy(model), "cost_model": "none"},
}.items():
    database = ms.tune_tir(
        module, target, work_dir=tempfile.mkdtemp(), max_trials_global=8, num_trials_per_iter=8,
        builder=ms.builder.LocalBuilder(initializer=load_tvm), **how,
    )  # fmt: skip
    ranked = tcl.rank(model, database)
    best = min(row["latency_s"] for row in ranked.table() if row["latency_s"])
    print(f"TCL as the {name}: {len(ranked)} programs measured, the best takes {1e6 * best:.1f} us")
