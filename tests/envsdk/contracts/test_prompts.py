from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.prompts import PLACEHOLDERS, AgentPrompts


def user(template: str, observation: str = "S F") -> str:
    prompts = AgentPrompts(template=template)
    return prompts.user(observation=observation, turn_index=2, num_actions_left=5, max_response_length=8)


def test_every_placeholder_is_filled_in_and_turns_count_from_one() -> None:
    template = "{turn_idx}/{actions_left}/{max_response_length}: {observation}; {observation}"
    assert user(template) == "3/5/8: S F; S F"


def test_other_braces_are_plain_text() -> None:
    assert user('{"answer": {}} {unknown} {0} {{observation}} {observation!r}') == (
        '{"answer": {}} {unknown} {0} {S F} {observation!r}'
    )


def test_the_default_template_is_the_observation_as_it_stands() -> None:
    prompts = AgentPrompts()
    shown = prompts.user(observation="{turn_idx}", turn_index=0, num_actions_left=1, max_response_length=1)
    assert shown == "{turn_idx}"


@given(observation=st.text() | st.sampled_from([f"{{{name}}}" for name in PLACEHOLDERS]))
def test_what_an_environment_shows_is_never_taken_for_a_template(observation: str) -> None:
    assert user("<{observation}>{turn_idx}", observation) == f"<{observation}>3"
