"""Stacks as people have them: one module for each written form, and the folder, prefix and numbering rules around them."""
