"""Oracles of the indexing operators."""

from __future__ import annotations

from typing import Any


def embedding(weight: Any, indices: Any) -> Any:
    return weight[indices]
