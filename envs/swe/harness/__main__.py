"""`python -m envsdk.envs.swe.harness NAME|CONFIG.yaml`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Options
from envsdk.base.store.atomic import make_folder
from envsdk.config.loading import load_config
from envsdk.config.plugins import environment_spec
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe import SPEC
from envsdk.envs.swe.harness.record import INSTALLED, Harness, read_harness


class HarnessOptions(Options):
    """What `python -m envsdk.envs.swe.harness` takes."""

    name: Annotated[str, Argument("NAME|CONFIG.yaml")]
    """A harness that ships: `mini-swe-agent`, `claude-code`, `codex` or `opencode`; or a run's file, whose
    tags name theirs."""


def command(options: HarnessOptions) -> int:
    """Install harnesses into the cache, where every run on this machine finds them."""
    is_file = options.name.endswith((".yaml", ".yml"))
    for harness in _named_in(options.name) if is_file else [read_harness(options.name)]:
        install(harness)
        say(f"{harness.name} is installed in {harness.place}")
    return 0


def _named_in(file: str) -> list[Harness]:
    """Those of a run's tags that are to be installed."""
    envs = load_config(file, for_training=False, to_explain=True).config.custom_envs.values()
    ours = [env for env in envs if environment_spec(env.env_type).id == SPEC.id]
    named = [read_harness(given) for env in ours if (given := env.env_config.get("harness"))]
    found = [each for each in named if each.install and each.folder is None]
    if not found:
        raise ConfigurationError(f"{file}: no tag has a `harness` with `install`")
    return found


def install(harness: Harness) -> None:
    """Run its `install`, unless that was done. ConfigurationError where it fails."""
    if not harness.lacks:
        return
    shutil.rmtree(harness.place, ignore_errors=True)
    make_folder(harness.place)
    script = ["bash", "-euo", "pipefail", "-c", harness.install]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env = {**own, "PYTHON": sys.executable}
    code = subprocess.run(script, cwd=harness.place, env=env, check=False).returncode
    if code:
        raise ConfigurationError(f"harness {harness.name}: its `install` ended with exit code {code}")
    (harness.place / INSTALLED).touch()


app, main = command_of(HarnessOptions, command, name="python -m envsdk.envs.swe.harness")

if __name__ == "__main__":
    sys.exit(main())
