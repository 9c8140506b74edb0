"""A fixture for the tests of our own error messages."""

import jaxtyping
import pytest


@pytest.fixture
def no_shape_checker():
    """Outside these tests nobody runs jaxtyping's checks, which come first; then our own messages must do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
