import pytest

from layers import Settings, SettingsError

SETTINGS = Settings(
    {
        "int": "80",
        "float": "1.5",
        "exp": "1e3",
        "yes": "Yes",
        "off": "OFF",
        "list": "a, b,,\nc",
        "n": "${int}",
    }
)


def test_numbers():
    assert SETTINGS.number("int") == 80
    assert isinstance(SETTINGS.number("int"), int)
    assert SETTINGS.number("float") == 1.5
    assert SETTINGS.number("exp") == 1000.0
    assert SETTINGS.number("n") == 80


def test_flags():
    assert SETTINGS.flag("yes") is True
    assert SETTINGS.flag("off") is False


def test_lists():
    assert SETTINGS.items("list") == ["a", "b", "c"]


def test_defaults():
    assert SETTINGS.number("none", 7) == 7
    assert SETTINGS.number("none", 0) == 0
    assert SETTINGS.flag("none", False) is False
    assert SETTINGS.items("none", ["x"]) == ["x"]
    assert [SETTINGS.number("none", default) for default in (3, 0, -7, 0.0)] == [3, 0, -7, 0.0]
    assert [SETTINGS.items("none", default) for default in ([], ["y", "z"], "")] == [[], ["y", "z"], ""]


@pytest.mark.parametrize("method", ["number", "flag"])
def test_a_wrong_type_names_the_key(method):
    with pytest.raises(SettingsError, match="list: "):
        getattr(SETTINGS, method)("list")
