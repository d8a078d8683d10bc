"""Fixtures of the drivers' tests."""

from driver.reference_context import context as context
