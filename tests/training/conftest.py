"""The bundled pair, loaded once."""

import pytest

from specbench.engine.loading import LoadedPair, load_pair
from specbench.pairs.registry import get_pair


@pytest.fixture(scope="session")
def mini() -> LoadedPair:
    return load_pair(get_pair("mini"), "cpu", "float32")
