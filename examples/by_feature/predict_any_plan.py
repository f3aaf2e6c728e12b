"""Plan gradient compression for recorded gradients, and predict the step on links that are not there.

python examples/by_feature/predict_any_plan.py
"""

import wirewise as ww
from wirewise.trace.gradients import GradientTensor, GradientTrace

tensors = tuple(GradientTensor(name=f"layer{i}.weight", elements=300_000, gap_us=900.0) for i in range(6))
job = GradientTrace(tensors=tensors, model="six layers")
for rate in ("100mbit", "1gbit", "10gbit"):
    links = ww.cost.Links.of(ww.topology.lab_hosts([rate] * 4))
    plan = ww.planners.fusion.cupcake(job, links, codec="dgc")
    step_s = ww.sim.predict(plan, job, links).step_s
    print(f"{rate}: {1e3 * step_s:.1f} ms a step, codecs {sorted({bucket.codec for bucket in plan.buckets})}")
