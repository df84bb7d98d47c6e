import json, sys, time

sys.path.insert(0, sys.argv[3])
import torch
from proxima import Trainer, load_config

options, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
fixed = {"preset": "none", "total_timesteps": 10**9, "quiet": True, "num_threads": 1}
trainer = Trainer(load_config(None, fixed | options))
for _ in range(2):
    trainer.iterate()
rows = []
for _ in range(int(seconds)):
    rows.append(trainer.iterate()["update_seconds"])
updates = options["update_epochs"] * trainer.config.num_updates
gradient = torch.zeros(trainer.policy.state_dict().__len__() and trainer.algorithm.learner.flat.vector.numel())
exchange = 0.0
if trainer.ranks.exchanges:
    start = time.perf_counter()
    for _ in range(200):
        trainer.ranks.sum(gradient)
    exchange = (time.perf_counter() - start) / 200
if trainer.ranks.is_first:
    found = {"update_ms": 1000 * sorted(rows)[len(rows) // 2] / updates, "all_reduce_ms": 1000 * exchange}
    print(json.dumps(found | {"parameters": gradient.numel()}))
trainer.close()
