"""Words that settings choose among, in sentences and in the engine's terms."""

from ftd import choices
from ftd.engine.expert_plan import POLICIES


def test_a_sentence_lists_them() -> None:
    assert choices.listed(choices.DEVICES) == "auto, cpu or cuda"
    assert choices.listed(choices.PRECISIONS) == "fast or f32"


def test_the_engine_knows_every_policy_that_a_setting_names() -> None:
    assert set(choices.EXPERTS_POLICIES) < POLICIES.keys()
