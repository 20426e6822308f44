"""Workflows: what joins collecting and learning."""
