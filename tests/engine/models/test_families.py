"""The table of families; what they compute is compared with transformers in three files.

Those take each architecture of the lists named here: tests/engine/test_model.py, test_hybrid.py, and in this
folder test_bert.py. Options of a family are those of its blocks, which test_blocks.py looks at one by one.
"""

import pytest

from ftd.engine.models import families
from ftd.errors import Unsupported
from tests.engine import encoders, hybrid, tiny


def test_known_architectures_are_transformers_model_types() -> None:
    from transformers import CONFIG_MAPPING

    assert families.FAMILIES and all(name in CONFIG_MAPPING for name in families.FAMILIES)


def test_every_architecture_is_compared_with_transformers() -> None:
    cases = [*tiny.CASES, *tiny.MOE_CASES, *hybrid.CASES, *encoders.CASES]
    assert {case.partition("-")[0] for case in cases} == set(families.FAMILIES)


def test_every_family_has_a_function_that_records_it() -> None:
    assert all(families.get(name).__name__ == "record" for name in families.FAMILIES)


def test_an_unknown_architecture_is_refused_with_the_list() -> None:
    with pytest.raises(Unsupported, match="mamba9") as caught:
        families.get("mamba9")
    assert caught.value.hint is not None and "llama" in caught.value.hint
