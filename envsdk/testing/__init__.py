"""Tests that any `TextEnv` should pass. Needs the extra `envsdk[testing]`."""

from envsdk.testing.runner import Outcome, Report, Status, examine, run_check
from envsdk.testing.suite import TextEnvSuite, check_text_env

__all__ = ["Outcome", "Report", "Status", "TextEnvSuite", "check_text_env", "examine", "run_check"]
