"""GPU vendors: one file each. They run in a child of their own (`sources.gpus`), because any call may never return."""
