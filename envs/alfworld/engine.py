"""Plays ALFWorld's games by TextWorld, in one process. Needs the packages `alfworld` and `textworld`.

    engine = Engine(cache_folder=None)
    scene = engine.start("a", game)
    scene = engine.step("a", "go to desk 1")
    engine.end("a")

The planner's library holds one state per copy of it, but can go back to any state it has been in. So
sessions of one game share a copy, and each keeps the number of the state it is in.
"""

from __future__ import annotations

import gc
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import envsdk.envs.alfworld.textworld_import  # noqa: F401

# isort: split
import alfworld.info
import fast_downward.interface
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import logic as pddl_logic
from textworld.generator.game import EntityInfo
from textworld.logic import Proposition, Signature

from envsdk.envs.alfworld import memo
from envsdk.envs.alfworld.games import Game, GameDataError, Scene
from envsdk.envs.alfworld.libraries import LibraryPool, engine_version
from envsdk.envs.alfworld.solver import Fact, View, next_command, reached_stages
from envsdk.envs.alfworld.translations import TranslationStore

NOTHING_HAPPENS = "Nothing happens."

_UNSEEN_BY_PLAYERS = frozenset({"checked", "examined", "wasinreceptacle"})
_STATIC_PREDICATES = frozenset(
    {
        "cancontain",
        "cleanable",
        "coolable",
        "heatable",
        "isreceptacleobject",
        "objecttype",
        "openable",
        "pickupable",
        "receptacleatlocation",
        "receptacletype",
        "sliceable",
        "toggleable",
    }
)


class Engine:
    """Any number of games at a time. Not thread-safe, and one per process."""

    def __init__(self, *, cache_folder: Path | None, cache_mb: int = 1024, max_games: int = 32) -> None:
        """
        Args:
            cache_folder: Where translations are kept on disk; None keeps none.
            cache_mb: What that folder may hold.
            max_games: Games that stay loaded when nobody plays them.
        """
        self._max_games = max_games
        self._games: OrderedDict[Game, LoadedGame] = OrderedDict()
        """Loaded games by what decides them: the game without its id."""
        self._sessions: dict[str, Session] = {}
        self._libraries = LibraryPool()
        memo.install(
            TranslationStore(cache_folder, memo.translate, version=engine_version(), limit_mb=cache_mb)
        )

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def start(
        self, name: str, game: Game, commands: Sequence[str] = (), *, with_stages: bool = False
    ) -> Scene:
        """Play `game` from its beginning, and on through `commands`; ends a session of the same name.

        GameDataError when the game cannot be loaded or has no beginning.
        """
        self.end(name)
        session = Session(self._load(game), with_stages=with_stages)
        self._sessions[name] = session
        try:
            scene = session.begin()
        except Exception as error:
            self.end(name)
            raise GameDataError(
                f"{game.id}: TextWorld cannot begin this game ({type(error).__name__}: {error})"
            ) from error
        for command in commands:
            scene = session.step(command)
        return scene

    def step(self, name: str, command: str) -> Scene:
        return self._sessions[name].step(command)

    def oracle(self, name: str, *, explores: bool = False) -> str:
        return self._sessions[name].oracle(explores=explores)

    def state_hash(self, name: str) -> str:
        return self._sessions[name].state_hash()

    def end(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.game.num_sessions -= 1
            self._unload_unused()

    def _load(self, game: Game) -> LoadedGame:
        key = replace(game, id="")
        loaded = self._games.get(key)
        if loaded is None:
            self._unload_unused()
            # Loading makes many objects and little garbage; looking for it would be a third of the cost.
            gc.disable()
            try:
                loaded = self._games[key] = LoadedGame(game, self._libraries)
            finally:
                gc.enable()
            memo.forget_facts()
        self._games.move_to_end(key)
        loaded.num_sessions += 1
        return loaded

    def _unload_unused(self) -> None:
        for key in list(self._games):
            if len(self._games) < self._max_games:
                return
            if not self._games[key].num_sessions:
                self._games.pop(key).unload()


class LoadedGame:
    """A game as it begins, and what is known of its operators; shared by its sessions."""

    def __init__(self, game: Game, libraries: LibraryPool) -> None:
        self.goal = game.goal
        self.num_sessions = 0
        self._libraries = libraries
        self._operators: dict[int, Operator] = {}
        self._facts: dict[Proposition, Fact] = {}
        domain = game.domain if game.domain is not None else shipped_domain()
        grammar = game.grammar
        if grammar is None:
            grammar = shipped_grammar().replace("UNKNOWN GOAL", game.description)
        self.library = libraries.take()
        try:
            self.logic = pddl_logic.GameLogic(domain=domain, grammar=grammar)
            self.start = State(self.library, game.problem, self.logic)
        except (Exception, SystemExit) as error:
            libraries.put_back(self.library)
            raise GameDataError(
                f"{game.id}: TextWorld cannot load this game ({type(error).__name__}: {error})"
            ) from error
        self.start_id: int = self.library.get_state_id()
        self.entities = _entities(self.start)
        self.names = {id: info.name.strip() for id, info in self.entities.items()}
        self._buffer = (fast_downward.Operator * 64)()

    def unload(self) -> None:
        self._libraries.put_back(self.library)

    def applicable(self) -> Iterator[Operator]:
        """What can be done in the state the library is in, in its order and each name once."""
        count = self.library.get_applicable_operators_count()
        if count > len(self._buffer):
            self._buffer = (fast_downward.Operator * (2 * count))()
        buffer = self._buffer
        self.library.get_applicable_operators(buffer)
        seen = set()
        for index in range(count):
            operator = self._operators.get(buffer[index].id)
            if operator is None:
                operator = self._meet(buffer[index])
            if operator.name not in seen:
                seen.add(operator.name)
                yield operator

    def context(self, state: State, operator: Operator | None = None) -> dict[str, Any]:
        """What the grammar derives a text in."""
        return {
            "state": state,
            "facts": (),
            "variables": operator.variables if operator else {},
            "mapping": operator.mapping if operator else {},
            "entity_infos": self.entities,
        }

    def fact(self, proposition: Proposition) -> Fact:
        """In the names of the game's texts."""
        fact = self._facts.get(proposition)
        if fact is None:
            names = tuple(self.names[variable.name] for variable in proposition.arguments)
            fact = self._facts[proposition] = (proposition.name, names)
        return fact

    @cached_property
    def put(self) -> str:
        """The command for putting something somewhere."""
        template: str = self.logic.actions["putobject"].template
        return template.replace("{o}", "{}").replace("{r}", "{}")

    @cached_property
    def receptacles_by_location(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for receptacle, location in View(map(self.fact, self.start.facts)).location.items():
            found.setdefault(location, []).append(receptacle)
        return found

    def _meet(self, entry: Any) -> Operator:
        name = entry.name
        action, *arguments = name.split()
        parameters = self.start._actions[action].parameters
        mapping = {
            pddl_logic.Placeholder(parameter.name.strip("?"), parameter.type_name): pddl_logic.Variable(
                argument, parameter.type_name
            )
            for parameter, argument in zip(parameters, arguments, strict=False)
        }
        operator = Operator(
            id=entry.id,
            name=name,
            num_effects=entry.nb_effect_atoms,
            mapping=mapping,
            variables={
                placeholder.name: self.entities[variable.name] for placeholder, variable in mapping.items()
            },
            template=self.logic.actions[action].template,
            feedback_rule=self.logic.actions[action].feedback_rule,
            command_is_fixed=_is_fixed(self.logic.actions[action].template),
        )
        self._operators[operator.id] = operator
        return operator


@dataclass(slots=True, kw_only=True)
class Operator:
    """One thing that can be done in a game: an action with all its arguments."""

    id: int
    name: str
    num_effects: int
    mapping: Mapping[Any, Any]
    variables: Mapping[str, EntityInfo]
    template: str
    feedback_rule: str
    command_is_fixed: bool
    """The template's condition, if any, is about what never changes."""
    command: str | None = None
    effects: Sequence[tuple[Proposition, Proposition]] | None = None
    """Each with its negation; None until it is first applied."""


class Session:
    """One player's course through a game."""

    def __init__(self, game: LoadedGame, *, with_stages: bool) -> None:
        self.game = game
        self._with_stages = with_stages
        self._state = game.start.copy()
        self._state_id = game.start_id
        self._operators: dict[str, Operator] = {}
        """Operators that can be applied now, by command."""
        self._seen: set[str] = set()
        """Receptacles whose content the player has seen."""

    def begin(self) -> Scene:
        game = self.game
        game.library.set_state_id(self._state_id)
        return self._scene(game.logic.grammar.derive("#intro#", game.context(self._state)))

    def step(self, command: str) -> Scene:
        operator = self._operators.get(command)
        self.game.library.set_state_id(self._state_id)
        if operator is None:
            return self._scene(NOTHING_HAPPENS)
        try:
            feedback = self._apply(operator)
        except ValueError:
            # So does the engine, whatever has happened to the state by then.
            feedback = NOTHING_HAPPENS
        return self._scene(feedback)

    def oracle(self, *, explores: bool) -> str:
        game = self.game
        return next_command(self._view(), game.goal, put=game.put, seen=self._seen if explores else None)

    def state_hash(self) -> str:
        """Digest of all a player can see or find out, and nothing else."""
        facts = sorted(
            f"{name} {','.join(names)}"
            for name, names in map(self.game.fact, self._state.facts)
            if name not in _UNSEEN_BY_PLAYERS and not name.startswith(("not_", "new-axiom"))
        )
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()

    def _apply(self, operator: Operator) -> str:
        game = self.game
        if operator.effects is None:
            atoms = (pddl_logic.Atom * operator.num_effects)()
            game.library.apply_operator(operator.id, atoms)
            self._state_id = game.library.get_state_id()
            effects = [atom.get_fact(game.start.name2type) for atom in atoms]
            operator.effects = [(effect.negate(), effect) for effect in effects]
        else:
            game.library.apply_operator(operator.id, None)
            self._state_id = game.library.get_state_id()
        for negation, effect in operator.effects:
            self._state.remove_fact(negation)
            self._state.add_fact(effect)
        context = game.context(self._state, operator)
        feedback: str = game.logic.grammar.derive(operator.feedback_rule, context)
        return feedback

    def _scene(self, feedback: str) -> Scene:
        game = self.game
        self._operators = {}
        for operator in game.applicable():
            self._operators.setdefault(self._command(operator), operator)
        self._look_around()
        return Scene(
            feedback=feedback,
            admissible=tuple(sorted(self._operators)),
            won=bool(game.library.check_goal()),
            stages=reached_stages(self._view(), game.goal) if self._with_stages else (),
        )

    def _command(self, operator: Operator) -> str:
        command = operator.command
        if command is None:
            context = self.game.context(self._state, operator)
            command = str(self.game.logic.grammar.derive(operator.template, context))
            if operator.command_is_fixed:
                operator.command = command
        return command

    def _look_around(self) -> None:
        game, state = self.game, self._state
        for at in state.facts_with_signature(_AT):
            location = game.names[at.arguments[1].name]
            for receptacle in game.receptacles_by_location.get(location, ()):
                if receptacle not in self._seen and self._is_open(receptacle):
                    self._seen.add(receptacle)

    def _is_open(self, receptacle: str) -> bool:
        names = self.game.names
        openable, opened = (
            {names[fact.arguments[0].name] for fact in self._state.facts_with_signature(signature)}
            for signature in (_OPENABLE, _OPENED)
        )
        return receptacle not in openable or receptacle in opened

    def _view(self) -> View:
        return View(map(self.game.fact, self._state.facts))


_AT = Signature("atlocation", ["agent", "location"])
_OPENABLE = Signature("openable", ["receptacle"])
_OPENED = Signature("opened", ["receptacle"])


class State(pddl_logic.PddlState):  # type: ignore[misc]
    """TextWorld's state, which can be copied and keeps its facts sorted, as queries want them."""

    def __init__(self, library: Any, problem: str, logic: Any) -> None:
        self._sorted: dict[Signature, list[Proposition]] = {}
        super().__init__(library, problem, logic)

    def copy(self) -> State:
        twin = object.__new__(State)
        twin.__dict__.update(self.__dict__)
        twin._facts = self._facts.copy()
        for signature, facts in self._facts.items():
            twin._facts[signature] = facts.copy()
        twin._vars_by_name = self._vars_by_name.copy()
        twin._vars_by_type = self._vars_by_type.copy()
        for type_name, variables in self._vars_by_type.items():
            twin._vars_by_type[type_name] = variables.copy()
        twin._var_counts = self._var_counts.copy()
        twin._sorted = dict(self._sorted)
        return twin

    def facts_with_signature(self, signature: Signature) -> Collection[Proposition]:
        facts = self._sorted.get(signature)
        if facts is None:
            facts = self._sorted[signature] = sorted(super().facts_with_signature(signature))
        return facts

    def add_fact(self, proposition: Proposition) -> None:
        self._sorted.pop(proposition.signature, None)
        super().add_fact(proposition)

    def remove_fact(self, proposition: Proposition) -> None:
        self._sorted.pop(proposition.signature, None)
        super().remove_fact(proposition)


@cache
def shipped_domain() -> str:
    return Path(alfworld.info.ALFRED_PDDL_PATH).read_text()


@cache
def shipped_grammar() -> str:
    return Path(alfworld.info.ALFRED_TWL2_PATH).read_text()


def _entities(state: State) -> dict[str, EntityInfo]:
    """All that occurs in the facts, under the names that ALFWorld gives it."""
    entities = {
        variable.name: EntityInfo(variable.name, variable.type)
        for fact in state.facts
        for variable in fact.arguments
    }
    for info in entities.values():
        info.name, info.definite, info.indefinite = info.id, "the", "a"
    demangler = Demangler(game_infos=entities, shuffle=False)
    for info in entities.values():
        info.name = demangler.demangle_alfred_name(info.id)
    return entities


def _is_fixed(template: str) -> bool:
    """Whether what a template derives to depends on nothing that changes during a game."""
    if "#" in template:
        return False
    _, condition, rest = template.partition("|")
    predicates = {part.split("(")[0].strip(" &") for part in rest.split(")")[:-1]} - {""}
    return not condition or predicates <= _STATIC_PREDICATES
