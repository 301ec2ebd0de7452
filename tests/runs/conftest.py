"""Synthetic samples and a full disk, as in the tests of both halves."""

from ..analysis.conftest import make, samples
from ..experiment.conftest import full_disk

__all__ = ["full_disk", "make", "samples"]
