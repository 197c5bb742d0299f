"""The console command `envsdk`: a table of its commands.

Each command is a module with a Typer app and a `main(argv) -> exit code`, so `envsdk collect X` and
`python -m envsdk.collect X` are the same. Exit codes are those of `envsdk.base.display.command_line`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from envsdk import __version__
from envsdk.base.display.command_line import run_app
from envsdk.base.display.terminal import say

app = typer.Typer(
    name="envsdk",
    no_args_is_help=True,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"envsdk {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Gym-style environments and asynchronous agentic rollouts for training LLM agents."""


_FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


_COMMANDS = {
    "train": ("envsdk.train", "Train a policy: `envsdk train agentic_async.yaml`."),
    "collect": ("envsdk.collect", "Play episodes with no trainer and write them as a data set."),
    "eval": (
        "envsdk.evaluate",
        "Play evaluations by name and print a table of results.",
    ),
    "evaluate": ("envsdk.evaluate", "The same as `eval`."),
    "replay": ("envsdk.replay", "Play a data set again, or give it other rewards."),
    "replay-run": (
        "envsdk.rollouts.play.replay_run",
        "Make a run's scheduling decisions again; say why it waited.",
    ),
    "reward": ("envsdk.reward", "Score recorded responses with a reward function."),
    "sft": ("envsdk.sft", "Fine-tune a policy on a data set."),
    "serve": ("envsdk.serve", "Serve a model over OpenAI's HTTP protocol; record sessions."),
    "serve-env": ("envsdk.serve_env", "Serve an environment over OpenEnv's protocol."),
    "sandboxd": (
        "envsdk.rewards.sandbox.sandboxd.__main__",
        "Serve this machine's sandboxes over E2B's protocol.",
    ),
    "init": ("envsdk.init", "Make a package with an environment of your own."),
    "check": ("envsdk.check", "Check that an environment keeps its contract."),
    "plan": ("envsdk.plan", "Predict throughput and find the best split of devices."),
    "report": ("envsdk.report", "Write a run's report.html."),
    "compare": ("envsdk.view.compare", "Compare runs: curves, seeds as bands, whether they differ."),
    "view": ("envsdk.view", "Look at runs and data sets in a browser."),
    "buffer": ("envsdk.buffer.__main__", "Look into the buffer between explorers and a trainer."),
    "envs": ("envsdk.envs.__main__", "List the environments that are installed, or play one by hand."),
}
"""Commands by name: the module whose `main` gets the arguments, and one line of help."""


def _forwarded(name: str, module: str, about: str) -> None:
    @app.command(name, help=about, add_help_option=False, context_settings=_FORWARD)
    def forward(context: typer.Context) -> None:
        raise typer.Exit(import_module(module).main(list(context.args)))


for _name, (_module, _about) in _COMMANDS.items():
    _forwarded(_name, _module, _about)


@app.command()
def explain(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML file, or a shipped example's name.")
    ] = "",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Replace single keys.")
    ] = None,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys",
            help="Print what every key means; a word in place of FILE picks keys and sections.",
        ),
    ] = False,
) -> None:
    """Print every key of a configuration and where it comes from."""
    if keys:
        from envsdk.config.reference import reference

        found = reference(source)
        if not found:
            raise typer.BadParameter(f"no key and no section is called {source}")
        say(found)
        return
    if not source:
        raise typer.BadParameter("name a YAML file, or ask for --keys")
    from envsdk.config import explain as explain_config
    from envsdk.config import load_config

    say(explain_config(load_config(source, overrides or [], to_explain=True)))


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk", tells_interrupt=False)


if __name__ == "__main__":
    sys.exit(main())
