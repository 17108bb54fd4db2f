"""The hook: what a training process records about itself (steps, phases, stacks on request) under `mldebug run`."""
