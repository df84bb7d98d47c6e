"""Parts that a user brings along are found again by name."""

import functools

import pytest

from proxima.errors import UsageError
from proxima.own_parts import find_part, name_part, only_in_python


class Net:
    """A class of the user's."""


def test_an_object_is_found_under_its_name() -> None:
    assert name_part(Net) == f"{__name__}:Net"
    assert find_part(name_part(Net)) is Net
    assert name_part("mynets:Net") == "mynets:Net"


def test_two_objects_of_one_name_have_two_names() -> None:
    first, second = (lambda x: x), (lambda x: -x)
    names = name_part(first), name_part(second)
    assert names[0] != names[1]
    assert [find_part(name) for name in names] == [first, second]
    assert name_part(first) == names[0]


def test_an_instance_is_not_found_as_its_class() -> None:
    assert find_part(name_part(given := Net())) is given
    assert name_part(given) == f"{__name__}:Net()"
    assert only_in_python(name_part(given)) and not only_in_python(name_part(Net))
    with pytest.raises(UsageError, match="give it again"):
        find_part(f"{__name__}:Net()#9")


def test_a_partial_has_the_name_of_its_function() -> None:
    assert name_part(functools.partial(sorted, reverse=True)) == "builtins:sorted()"


def test_a_name_is_imported() -> None:
    assert find_part("collections:OrderedDict.fromkeys") == __import__("collections").OrderedDict.fromkeys


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "module:attribute"),
        ("no_such_module_here:Net", "cannot import no_such_module_here"),
        ("json:Nothing", "json has no Nothing"),
        ("json:f.<locals>.g", "give it again"),
    ],
)
def test_a_name_without_an_object_is_an_error(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_part(name, what="loss")
