import contextlib
import warnings

import pytest

from oddities import check, chunks, divide, mean, old, parse


def test_what_is_known_of_an_exception():
    with pytest.raises(ZeroDivisionError) as info:
        divide(5, 0)
    assert info.type is ZeroDivisionError
    assert info.value.args == ("5 by zero",)
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert info.match("^5 by")
    assert "by zero" in str(info.value) and info.errisinstance(ArithmeticError)
    assert info.traceback[-1].name == "divide"


def test_a_base_of_it_and_one_of_several():
    with pytest.raises(ArithmeticError):
        divide(1, 0)
    with pytest.raises((TypeError, ZeroDivisionError)):
        divide(1, 0)
    error = pytest.raises(ValueError, mean, [])
    assert "nothing" in str(error.value)
    pytest.raises(ValueError, lambda: list(chunks("a", 0))).match("at least 1, not 0")


def test_by_hand():
    try:
        parse("a")
    except ValueError as error:
        assert "'a'" in str(error)
    else:
        pytest.fail("nothing was raised")
    caught = None
    try:
        check([])
    except AssertionError as error:
        caught = error
    assert caught is not None and "[]" in str(caught)
    with contextlib.suppress(ValueError):
        mean([])
        raise AssertionError("not reached")


@pytest.mark.parametrize(
    ("size", "expectation"),
    [
        (1, contextlib.nullcontext(3)),
        (5, contextlib.nullcontext(1)),
        (0, pytest.raises(ValueError, match="size must be")),
        (None, pytest.raises(TypeError)),
    ],
)
def test_maybe_raising(size, expectation):
    with expectation as wanted:
        assert len(list(chunks("abc", size))) == wanted


def test_an_assertion_that_must_fail():
    with pytest.raises(AssertionError):
        assert mean([1]) == 2
    with pytest.raises(TypeError):
        assert mean(["a"]) < 3
    with pytest.raises(ZeroDivisionError), contextlib.nullcontext():
        assert divide(1, 0) == 1
    assert check(1) == 1


def test_lazily_raised():
    parts = chunks("abc", 0)
    with pytest.raises(ValueError):
        next(parts)
    with pytest.raises(StopIteration):
        next(chunks("", 2))


def test_warnings():
    with pytest.warns(DeprecationWarning, match="slug") as seen:
        assert old() == "old"
    assert len(seen) == 1 and seen[0].filename == __file__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old()
    assert [w.category for w in caught] == [DeprecationWarning]
    with pytest.deprecated_call():
        old()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeprecationWarning):
            old()
