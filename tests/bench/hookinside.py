"""Inside of one rank under the hook: what the hook adds to `optimizer.step` of a real SGD, as JSON. `hook.py` starts it.

The hook is in PyTorch's list of hooks and is not, in turns; the time is CPU time of this thread, so that other work on the machine
counts little. It is called as in any training: through PyTorch's wrappers and the one that keeps the compiler away.
"""

import json
import os
import statistics
import time

import torch
from torch.optim import optimizer as optimizers

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "15"))
EACH = 1000


def microseconds(sgd: torch.optim.Optimizer) -> float:
    """CPU time of one step."""
    began = time.thread_time()
    for _ in range(EACH):
        sgd.step()
    return (time.thread_time() - began) / EACH * 1e6


def main() -> None:
    """Measure, and print the medians: of a step without the hook, and of what it adds; and that of the quickest rounds."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(4)).sum().backward()
    sgd.step()
    hooks = optimizers._global_optimizer_post_hooks
    kept = dict(hooks)
    without, within = [], []
    for _ in range(ROUNDS):
        hooks.clear()
        without.append(microseconds(sgd))
        hooks.update(kept)
        within.append(microseconds(sgd))
    facts = {
        "hooks": len(kept),
        "without": statistics.median(without),
        "more": statistics.median(a - b for a, b in zip(within, without, strict=True)),
        "least": min(within) - min(without),
        "bare": min(without),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
