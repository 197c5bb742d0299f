"""Tests that any `TextEnv` should pass. Needs the extra `envsdk[testing]`."""

from envsdk.testing.suite import TextEnvSuite, check_text_env

__all__ = ["TextEnvSuite", "check_text_env"]
