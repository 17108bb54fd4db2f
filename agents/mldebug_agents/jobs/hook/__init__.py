"""What the hook in a training process says, and how it is asked for stacks; nothing here attaches to anybody."""
