"""Reads what collectors of logs export, and JSON that holds whole texts, such as dumps of stacks."""
