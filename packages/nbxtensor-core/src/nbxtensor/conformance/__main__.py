"""``python -m nbxtensor.conformance --driver NAME``: the suite, with pytest's own arguments after it."""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "nbxtensor.conformance.plugin", "--pyargs", "nbxtensor.conformance", *sys.argv[1:]]))
