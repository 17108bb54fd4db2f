"""A package that looks like PyTorch to the hook, as far as steps go: for processes that shall cost nothing."""

import textwrap
from pathlib import Path

TORCH = {
    "torch/__init__.py": "import torch.optim\n",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
    "torch/optim/optimizer.py": """
        hooks = []

        def register_optimizer_step_post_hook(hook):
            hooks.append(hook)

        class Optimizer:
            def step(self):
                for hook in hooks:
                    hook(self, (), {})
    """,
}


def write_torch(folder: Path) -> Path:
    """Put it into a folder, which is what belongs on PYTHONPATH."""
    for name, text in TORCH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder
