"""The suite that every driver must pass, shipped so that a backend's author runs it where the device is.

    pip install "nbxtensor-core[conformance]"
    python -m nbxtensor.conformance --driver cuda --ordinal 0
    python -m nbxtensor.conformance --driver-object my_package.backend:driver -k copies

which is short for ``python -m pytest -p nbxtensor.conformance.plugin --pyargs nbxtensor.conformance ...``: further
arguments are pytest's. ``--driver`` is an entry point of the group ``nbxtensor.drivers``; ``--driver-object`` names a
`nbxtensor.backend.contract.Driver` that need not be installed. ``--ordinal`` is the device, 0 when left out.

One file covers one area of the contract. What a context declares in its capabilities decides which tests are collected:
a declared ability is exercised, and for one that is not declared there is a test that it is refused. A context that
executes nothing is held to its books and its refusals.

`nbxtensor.conformance.null` has contexts for the tests of code that stands above a driver. This package itself imports
neither pytest nor Triton.
"""
