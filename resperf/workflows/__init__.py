"""Workflows: what joins collecting and learning."""

from __future__ import annotations
