from slotcache import memoize


def test_a_result_is_computed_once():
    calls = []

    @memoize()
    def double(x):
        calls.append(x)
        return 2 * x

    assert [double(2), double(2), double(3)] == [4, 4, 6]
    assert calls == [2, 3]


def test_none_is_a_result_too():
    calls = []

    @memoize()
    def look_up(x):
        calls.append(x)
        return {2: "two"}.get(x)

    found = [look_up(x) for x in (1, 2, 1, 3, 3, 2, 1)]
    assert found == [None, "two", None, None, None, "two", None]
    assert calls == [1, 2, 3]


def test_every_none_is_computed_once():
    calls = []

    @memoize()
    def vowel(letter):
        calls.append(letter)
        return letter if letter in "aeiou" else None

    for letter in "nothing is not something":
        vowel(letter)
    assert "".join(calls) == "nothig sme"


def test_functions_do_not_share_results():
    @memoize()
    def plus(x):
        return x + 1

    @memoize()
    def minus(x):
        return x - 1

    assert (plus(1), minus(1)) == (2, 0)
    assert plus.cache is not minus.cache


def test_the_order_of_keywords_does_not_matter():
    calls = []

    @memoize()
    def pair(*, a, b):
        calls.append((a, b))
        return a, b

    assert pair(a=1, b=2) == pair(b=2, a=1) == (1, 2)
    assert len(calls) == 1


def test_positional_and_keyword_arguments_are_told_apart():
    @memoize()
    def show(*args, **kwargs):
        return args, kwargs

    assert show(("a", 1)) == ((("a", 1),), {})
    assert show(a=1) == ((), {"a": 1})


def test_types_are_told_apart_on_demand():
    @memoize(typed=True)
    def kind(x):
        return type(x).__name__

    assert (kind(3), kind(3.0)) == ("int", "float")


def test_an_exception_is_not_remembered():
    calls = []

    @memoize()
    def fragile(x):
        calls.append(x)
        if len(calls) == 1:
            raise OSError("try again")
        return x

    try:
        fragile(1)
    except OSError:
        pass
    assert fragile(1) == 1
