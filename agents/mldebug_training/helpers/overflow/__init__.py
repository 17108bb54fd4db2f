"""Finds the first module of a model whose numbers turn inf or nan."""
