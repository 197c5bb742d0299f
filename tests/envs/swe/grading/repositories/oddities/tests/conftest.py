import pytest

from oddities import Stack


@pytest.fixture
def stack():
    made = Stack([1, 2, 3])
    assert len(made) == 3
    yield made
    assert len(made) <= 4


@pytest.fixture(autouse=True)
def _numbered(request):
    assert request.node.name.startswith("test")
    yield
