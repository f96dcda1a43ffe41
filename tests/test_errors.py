"""The error tree: every class pickles and crosses the engine socket by name."""

import pickle

import pytest

from ftd import errors


def every_class() -> list[type[errors.FtdError]]:
    found: list[type[errors.FtdError]] = [errors.FtdError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return [cls for cls in found if cls.__module__ == "ftd.errors"]


@pytest.mark.parametrize("cls", every_class())
def test_an_error_survives_pickling(cls: type[errors.FtdError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what happened: 7", "do this")))
    assert type(error) is cls
    assert (error.message, error.hint, str(error)) == ("what happened: 7", "do this", "what happened: 7")


@pytest.mark.parametrize("cls", every_class())
def test_a_class_is_found_by_its_name(cls: type[errors.FtdError]) -> None:
    assert errors.by_name(cls.__name__) is cls


def test_an_unknown_name_is_an_engine_error() -> None:
    assert errors.by_name("SomethingNew") is errors.EngineError


def test_the_tree_is_drawn_in_the_module_docstring() -> None:
    missing = [cls.__name__ for cls in every_class() if cls.__name__ not in (errors.__doc__ or "")]
    assert missing == []
