"""Helpers with assertions, which tests import."""

from contextlib import contextmanager


def assert_slug(text, wanted=None):
    from oddities import slug

    found = slug(text)
    assert found == found.lower(), "lower case"
    if wanted is not None:
        assert found == wanted
    return found


@contextmanager
def unchanged(things):
    before = list(things)
    yield before
    assert list(things) == before
