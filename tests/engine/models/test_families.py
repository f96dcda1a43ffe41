"""The table of families; what they compute is tested in test_model.py against transformers."""

import pytest

from ftd.engine.models import families
from ftd.errors import Unsupported


def test_known_architectures_are_transformers_model_types() -> None:
    from transformers import CONFIG_MAPPING

    assert families.FAMILIES and all(name in CONFIG_MAPPING for name in families.FAMILIES)


def test_every_family_has_a_function_that_records_it() -> None:
    assert all(families.get(name).__name__ == "record" for name in families.FAMILIES)


def test_an_unknown_architecture_is_refused_with_the_list() -> None:
    with pytest.raises(Unsupported, match="mamba9") as caught:
        families.get("mamba9")
    assert caught.value.hint is not None and "llama" in caught.value.hint
