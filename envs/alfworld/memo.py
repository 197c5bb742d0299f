"""Makes TextWorld's PDDL engine remember what it recomputes. For a process that does nothing else.

    install(store)

What the engine derives, and in which order, stays its own; only its inputs come from memory:

- translations: `fast_downward.pddl2sas` asks the store, and leaves out the second translation, which serves
  a planner that nobody calls;
- parses of grammars, of their rules and of the conditions in them;
- deep copies of what nothing changes become shallow ones, and expressions are compiled once.

`tests/envs/alfworld` compares every text with that of the engine as it is installed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import envsdk.envs.alfworld.textworld_import  # noqa: F401

# isort: split
import fast_downward
import mementos.core
from fast_downward.translate.pddl.conditions import Atom
from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.logic import Rule

from envsdk.envs.alfworld.translations import Translation, TranslationStore

_MAX_REMEMBERED = 4096
_PLACEHOLDER = "UNKNOWN GOAL"
_TASK = re.compile(r'"rhs": "Your task is to: (?P<goal>[A-Za-z0-9 ,\'-]+)\."')
"""The one rule in which two games' grammars differ, as long as its text has nothing to be interpreted."""

_pddl2sas = fast_downward.pddl2sas


def install(store: TranslationStore) -> None:
    """Once per process."""
    _remember_translations(store)
    _remember_rules()
    _remember_grammars()
    textgen.deepcopy = _shallow_copy
    _compile_expressions()


def forget_facts() -> None:
    """Drop TextWorld's own table of facts, which it never shortens; facts compare by value."""
    mementos.core._memento_cache.clear()


def translate(domain: str, problem: str) -> Translation:
    """What the engine would have translated."""
    task, sas = _pddl2sas(domain, problem, verbose=False, optimize=False)
    return Translation(
        sas=sas,
        actions=[
            (action.name, [(parameter.name, parameter.type_name) for parameter in action.parameters])
            for action in task.actions
        ],
        types=[(type.name, list(type.supertype_names)) for type in task.types],
        objects=[(thing.name, thing.type_name) for thing in task.objects],
        facts=[fact for fact in map(_fact, task.init) if fact is not None],
    )


def _fact(entry: Any) -> tuple[str, list[str]] | None:
    """An entry of the initial state as `PddlState` reads it."""
    if isinstance(entry, Atom):
        return None if entry.predicate == "=" else (entry.predicate, list(entry.args))
    if not hasattr(entry, "fluent") or entry.fluent.symbol == "total-cost":
        return None
    name = str(entry.expression.value)
    return None if name.isdigit() else (name, list(entry.fluent.args))


def _remember_translations(store: TranslationStore) -> None:
    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        if optimize:
            return None, ""
        translation = store.get(domain, problem)
        return _task(translation), translation.sas

    fast_downward.pddl2sas = pddl2sas


def _task(translation: Translation) -> Any:
    """What `PddlState` reads of a planner's task."""
    return SimpleNamespace(
        actions=[
            SimpleNamespace(
                name=name,
                parameters=[
                    SimpleNamespace(name=name, type_name=type_name) for name, type_name in parameters
                ],
            )
            for name, parameters in translation.actions
        ],
        types=[
            SimpleNamespace(name=name, supertype_names=supertypes) for name, supertypes in translation.types
        ],
        objects=[SimpleNamespace(name=name, type_name=type_name) for name, type_name in translation.objects],
        init=[Atom(predicate, arguments) for predicate, arguments in translation.facts],
    )


def _remember_rules() -> None:
    parse: Any = lru_cache(_MAX_REMEMBERED)(Rule.parse_conjunctive_query.__func__)
    Rule.parse_conjunctive_query = classmethod(parse)
    convert = lru_cache(_MAX_REMEMBERED)(textgen._parse_and_convert)

    def parse_and_convert(text: str, rule_name: str | None = None, **options: Any) -> Any:
        return _shallow_copy(convert(text, rule_name=rule_name))

    textgen._parse_and_convert = parse_and_convert


def _remember_grammars() -> None:
    convert = lru_cache(8)(pddl_logic._parse_and_convert)

    def parse_and_convert(text: str, rule_name: str | None = None, **options: Any) -> Any:
        matches = list(_TASK.finditer(text))
        if len(matches) != 1:
            return convert(text, rule_name=rule_name, **options)
        goal = matches[0]["goal"]
        general = text[: matches[0].start("goal")] + _PLACEHOLDER + text[matches[0].end("goal") :]
        actions, grammar = convert(general, rule_name=rule_name, **options)
        return actions, _with_goal(grammar, goal)

    pddl_logic._parse_and_convert = parse_and_convert


def _with_goal(grammar: Any, goal: str) -> Any:
    """The grammar with its one rule about the task saying `goal`."""
    special = textgen.ContextSensitiveGrammar()
    for name, rules in grammar._rules.items():
        special._rules[name] = list(rules)
    (rule,) = special._rules["task"]
    special._rules["task"] = [
        textgen.ProductionRule(
            lhs=rule.lhs,
            rhs=textgen._parse_and_convert(f"Your task is to: {goal}.", rule_name="symbols"),
            weight=rule.weight,
            condition=rule.condition,
        )
    ]
    return special


def _shallow_copy(value: Any) -> Any:
    """Copy of a context's dictionary, a symbol or symbols, of which only the context is ever set."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [_shallow_copy(item) for item in value]
    if isinstance(value, textgen.Symbol):
        twin = object.__new__(type(value))
        twin.__dict__.update(value.__dict__)
        return twin
    return value


def _compile_expressions() -> None:
    names = vars(textgen)

    @lru_cache(_MAX_REMEMBERED)
    def compiled(expression: str) -> Any:
        return compile(expression.strip(), "<grammar>", "eval")

    def derive(self: Any, context: Any = None) -> list[Any]:
        context = context or self.context
        return [textgen.TerminalSymbol(eval(compiled(self.expression), names, dict(context["variables"])))]

    textgen.EvalSymbol.derive = derive
