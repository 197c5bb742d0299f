"""Chat templates for token-in-token-out: the tokens to append to a token log in each turn.

    first_prompt -> (engine samples a reply) -> next_prompt -> (reply) -> next_prompt -> ...

A template renders a complete conversation, but a token log only grows. `next_prompt` therefore returns the
part of a rendered conversation that follows a reply. That part is found once, with sentinel texts, so that
earlier turns are never rendered or tokenized again. If each reply has the tokens that the tokenizer would
give its text, the log equals the tokens of the complete conversation.

    chat = ChatTokenizer.load(Path("model"))
    log.append_prompt(chat.first_prompt(system="You play a game.", user="_ P G"))
    log.append_sampled(...)
    log.append_prompt(chat.next_prompt(user="_ _ P", reply_closed=True))

Needs only `tokenizers` and `jinja2`: workers that play episodes never load transformers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jinja2
from tokenizers import Encoding, Tokenizer

from envsdk.contracts.chat_template import CALL, Message, compiled, ending_in, with_text_arguments
from envsdk.contracts.failures import ConfigurationError, without_lone_surrogates
from envsdk.contracts.prompts import opening

# Each text is tokenized on the calling thread: a thread pool in every worker would take the engines' cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_REPLY = "envsdkreplysentinel"
_USER = "envsdkusersentinel"

# Observations that could change the tokens around them: empty, with white space at an end, with digits or
# letters that merge with their neighbors, with markup, not ASCII.
_PROBES = (
    _USER,
    "",
    " ",
    "\n",
    f"  {_USER}  ",
    f"\n\n{_USER}\n\n",
    f"\t{_USER}\n",
    "7",
    "é漢字🙂",
    "<answer>Up</answer>",
    "# _ P\n# G _",
)

# Special tokens that stay in the text of a reply, unless they end it: marks of thoughts and tool calls.
_MARKS = re.compile(
    r"</?(think|tool_call|arg_key|arg_value)>|\[(TOOL_CALLS|CALL_ID|ARGS)\]|<｜tool▁\w+｜>"
    r"|<\|(python_tag|start|channel|constrain|message|end|call)\|>"
)
_SUSPICIOUS_CHARS = 16
"""A text with more characters than this per token of room is counted in slices before it is tokenized."""
_SLICE_CHARS = 1 << 14


class TooManyTokens(Exception):
    """A text is far longer than `room`, as the token count of its beginning already shows."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"its beginning alone has {num_tokens} tokens")
        self.num_tokens = num_tokens
        """Tokens of the beginning that was counted."""


@dataclass(frozen=True, slots=True)
class _TurnDelta:
    """`next_prompt` as constants around an observation: ids, text, the observation, text, ids."""

    head_ids: list[int]
    text_before: str
    text_behind: str
    tail_ids: list[int]
    strips_left: bool
    strips_right: bool


class ChatTokenizer:
    """A tokenizer with its chat template. It has no state after loading: all episodes share one."""

    stop_token_ids: tuple[int, ...]
    """Tokens that end a reply; the template's own end-of-turn token is the first."""
    vocab_size: int
    """Number of token ids, including added tokens. A model's embedding may be padded beyond it."""
    num_ids: int
    """One more than the highest token id: the number of embeddings that a model needs."""
    tokenizer_json: Callable[[], str]
    """The text of its `tokenizer.json`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """`special_tokens` are variables of the template, such as `bos_token`. `load` is the usual
        constructor."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self.tokenizer_json = tokenizer, tokenizer.to_str
        self._template = compiled(chat_template)
        self._variables = dict(special_tokens or {})
        self._added = {
            token.content: (token_id, token)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._markup = _markup(text for text, (_, token) in self._added.items() if token.special)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.num_ids = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

        self._takes_arguments_as_text = False
        self._takes_arguments_as_text = not self._renders(CALL) and self._renders(with_text_arguments(CALL))
        behind_reply = self._render_behind_reply(_USER)
        self._end_of_turn_ids = self._find_end_of_turn(behind_reply, stop_token_ids)
        # Harmony ends each message of a reply so, and the reply by stop tokens of its own.
        ends = [] if tokenizer.token_to_id("<|call|>") in stop_token_ids else self._end_of_turn_ids[-1:]
        self.stop_token_ids = tuple(dict.fromkeys([*ends, *stop_token_ids]))
        special = ((token_id, text) for text, (token_id, token) in self._added.items() if token.special)
        marks = {token_id: text for token_id, text in special if _MARKS.fullmatch(text)}
        self._marks = {token_id: marks[token_id] for token_id in marks.keys() - {*self.stop_token_ids}}
        delta = self._find_delta(behind_reply)
        is_exact = delta and all(
            self._join(delta, probe) == self.encode(self._render_behind_reply(probe)) for probe in _PROBES
        )
        self._delta = delta if is_exact else None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a Hugging Face folder. ConfigurationError names a file that is missing or damaged."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigurationError(
                f"model folder {folder} does not exist: give a local Hugging Face folder"
            )
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ConfigurationError(
                f"{tokenizer_file} is missing: save the model's fast tokenizer there "
                f"(`AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})`)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise ConfigurationError(f"{tokenizer_file} is not a tokenizer file: {error}") from error

        settings, special_tokens, stop_ids = _settings(folder)
        eos_id = tokenizer.token_to_id(special_tokens.get("eos_token", ""))
        if eos_id is not None:
            stop_ids.append(eos_id)
        try:
            chat = cls(
                tokenizer,
                _read_template(folder, settings),
                special_tokens=special_tokens,
                stop_token_ids=stop_ids,
            )
        except jinja2.TemplateError as error:
            raise ConfigurationError(f"the chat template in {folder} cannot be used: {error}") from error
        if not chat.stop_token_ids:
            raise ConfigurationError(
                f"no token ends a reply in {folder}: set `eos_token` in tokenizer_config.json "
                "or `eos_token_id` in generation_config.json"
            )
        return chat

    def first_prompt(
        self,
        *,
        system: str,
        user: str,
        tools: Sequence[Mapping[str, Any]] = (),
        history: Sequence[Message] = (),
        room: int | None = None,
    ) -> list[int]:
        """Tokens of the first turn, including the generation prompt.

        An empty `system` means no system message. `tools` are the functions that the policy may call, in the
        format of the OpenAI API. `history` are messages before the user's: see `prompts.opening`. Special
        tokens in `user` and in `history` are split: see `without_markup`. `room` as in `encode`.
        """
        self._check_room(user, room)
        history = [{**each, "content": self.without_markup(each["content"])} for each in history]
        messages = [*opening(system, history), {"role": "user", "content": self.without_markup(user)}]
        try:
            return self.encode(self.render(messages, tools=tools))
        except jinja2.TemplateError as error:
            raise ConfigurationError(
                f"the model's chat template refuses the prompt: {error}; "
                "a template without a system role needs an empty `agent_system_template`"
            ) from error

    def next_prompt(self, *, user: str, reply_closed: bool, room: int | None = None) -> list[int]:
        """Tokens from the end of a sampled reply to the start of the next one.

        `reply_closed`: the reply ended with a stop token, which is then not written again. A reply that was
        cut off (`length`, `abort`) is closed first. Special tokens in `user` are split: see `without_markup`.
        `room` as in `encode`.
        """
        self._check_room(user, room)
        user = self.without_markup(user)
        ids = self._join(self._delta, user) if self._delta else self.encode(self._render_behind_reply(user))
        return ids[len(self._end_of_turn_ids) :] if reply_closed else ids

    def without_markup(self, text: str) -> str:
        """`text` with a space inside every special token that it contains: `< |im_end|>`.

        Otherwise an observation could end its own message and write one in another role.
        """
        while self._markup is not None and self._markup.search(text):
            text = self._markup.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        return text

    def behind_reply(
        self,
        messages: Sequence[Message],
        index: int,
        *,
        reply_closed: bool,
        closing: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        room: int | None = None,
    ) -> list[int]:
        """Tokens from the end of the reply `messages[index]` to the start of the next one.

        `reply_closed` as in `next_prompt`, `closing` the stop token where it is known, `room` as in `encode`.
        Raises jinja2.TemplateError when the template refuses these messages, or when the rendered text does
        not contain that reply exactly once.
        """
        marked, reply = list(messages), messages[index]
        marked[index] = {"role": "assistant", "content": _REPLY}
        try:
            _, found, behind = self.render(marked, tools=tools).partition(_REPLY)
        except jinja2.TemplateError:
            if not reply.get("tool_calls"):
                raise
            marked[index] = ending_in(reply, _REPLY)
            return self._behind_calls(marked, index, reply_closed=reply_closed, tools=tools, room=room)
        if not found or _REPLY in behind:
            raise jinja2.TemplateError("it does not write an assistant's message exactly once, as it stands")
        ids = self.encode(behind, room=room)
        num_closing = len(self._end_of_turn_ids)
        if ids[:num_closing] != self._end_of_turn_ids:
            if ids[0] not in self.stop_token_ids:
                raise jinja2.TemplateError("it ends this reply in another way than others")
            # GLM: the token that begins the next message ends this one, unless a reply ended with another.
            return ids[1:] if reply_closed and closing in (None, ids[0]) else ids
        return ids[num_closing:] if reply_closed else ids

    def _behind_calls(
        self,
        marked: Sequence[Message],
        index: int,
        *,
        reply_closed: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        room: int | None,
    ) -> list[int]:
        """`behind_reply` where results may only follow calls; `marked[index]` ends in a mark."""
        alone = self.render(marked[: index + 1], tools=tools, add_generation_prompt=False)
        _, found, end = alone.rpartition(_REPLY)
        closing = self.encode(end)
        ids = self.encode(self.render(marked, tools=tools).rpartition(_REPLY)[2], room=room)
        if not found or ids[: len(closing)] != closing or not self.is_closed(closing):
            raise jinja2.TemplateError("it ends calls with no stop token")
        return ids[len(closing) - (not reply_closed) :]

    def reply(self, text: str) -> list[int]:
        """Tokens of a demonstrated reply, including the end-of-turn token that the policy should learn."""
        return self.encode(text) + list(self._end_of_turn_ids or self.stop_token_ids[:1])

    def is_closed(self, reply_ids: Sequence[int]) -> bool:
        """Whether a sampled reply ended with a stop token."""
        return len(reply_ids) > 0 and int(reply_ids[-1]) in self.stop_token_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids, by default without special tokens other than `_MARKS`."""
        if skip_special_tokens and self._marks and not self._marks.keys().isdisjoint(ids):
            runs = [(mark, [*run]) for mark, run in itertools.groupby(ids, self._marks.get)]
            return "".join(mark * len(run) if mark else self._tokenizer.decode(run) for mark, run in runs)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def encode(self, text: str, *, room: int | None = None) -> list[int]:
        """Tokens of a text. Special tokens in it are recognized; none is added.

        A lone surrogate, which UTF-8 cannot encode, counts as U+FFFD. Other threads run meanwhile. Raises
        TooManyTokens early when a text is far longer than `room` tokens; a slightly longer text is tokenized.
        """
        self._check_room(text, room)
        return list(self._encoding(text).ids)

    def _check_room(self, text: str, room: int | None) -> None:
        if room is None or len(text) <= max(_SUSPICIOUS_CHARS * room, _SLICE_CHARS):
            return
        count = 0
        for start in range(0, len(text), _SLICE_CHARS):
            count += len(self._encoding(text[start : start + _SLICE_CHARS]))
            # Cutting the text splits a few tokens, but never doubles their number.
            if count > 2 * room + _SLICE_CHARS:
                raise TooManyTokens(count)

    def _encoding(self, text: str) -> Encoding:
        # Only the library's methods for batches release the interpreter's lock.
        try:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except TypeError:
            texts = [without_lone_surrogates(text)]
            (encoding,) = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return encoding

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The complete conversation as text. `tools` are the functions that the policy may call.

        Raises jinja2.TemplateError for every error in the template.
        """
        if self._takes_arguments_as_text:
            messages = [with_text_arguments(message) for message in messages]
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except jinja2.TemplateError:
            raise
        except Exception as error:  # a template may run any code
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error

    def _renders(self, reply: Message) -> bool:
        try:
            self.render([{"role": "user", "content": _USER}, reply])
        except jinja2.TemplateError:
            return False
        return True

    def _render_behind_reply(self, user: str) -> str:
        """The text from the end of a reply to the start of the next one, cut from a rendered conversation."""
        rendered = self.render(
            [
                {"role": "user", "content": _USER},
                {"role": "assistant", "content": _REPLY},
                {"role": "user", "content": user},
            ]
        )
        _, found, behind = rendered.partition(_REPLY)
        if not found or _REPLY in behind:
            raise jinja2.TemplateError("it does not write an assistant's message exactly once, as it stands")
        return behind

    def _join(self, delta: _TurnDelta, user: str) -> list[int]:
        if delta.strips_left:
            user = user.lstrip()
        if delta.strips_right:
            user = user.rstrip()
        text = delta.text_before + user + delta.text_behind
        return [*delta.head_ids, *self.encode(text), *delta.tail_ids]

    def _find_end_of_turn(self, behind_reply: str, stop_token_ids: Sequence[int]) -> list[int]:
        """Tokens that close a reply: up to the first added token, if that follows at once or is a stop
        token."""
        before, _, _ = behind_reply.partition(_USER)
        for position in range(len(before)):
            token = self._added_token_at(before, position)
            if token is not None:
                closes = position == 0 or self._added[token][0] in stop_token_ids
                return self.encode(before[: position + len(token)]) if closes else []
        return []

    def _find_delta(self, behind_reply: str) -> _TurnDelta | None:
        """The constants of `next_prompt`. Text beyond an added token is tokenized on its own, so it never
        changes.

        None when the template rewrites the observation: each turn is then rendered.
        """
        if behind_reply.count(_USER) != 1:
            return None
        before, _, behind = behind_reply.rpartition(_USER)
        head_end, tail_start = 0, len(behind)
        for position in range(len(before)):
            token = self._added_token_at(before, position)
            if token is not None and not self._added[token][1].rstrip:
                head_end = position + len(token)
        for position in range(len(behind) - 1, -1, -1):
            token = self._added_token_at(behind, position)
            if token is not None and not self._added[token][1].lstrip:
                tail_start = position
        padded = self._render_behind_reply(f" {_USER} ")
        return _TurnDelta(
            head_ids=self.encode(before[:head_end]),
            text_before=before[head_end:],
            text_behind=behind[:tail_start],
            tail_ids=self.encode(behind[tail_start:]),
            strips_left=f" {_USER}" not in padded,
            strips_right=f"{_USER} " not in padded,
        )

    def _added_token_at(self, text: str, position: int) -> str | None:
        """The longest added token that starts at `position`."""
        matches = [token for token in self._added if text.startswith(token, position)]
        return max(matches, key=len, default=None)


def _markup(special_tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Matches special tokens in a text. One that begins or ends with a space cannot be split by one."""
    texts = [text for text in special_tokens if len(text) > 1 and text == text.strip()]
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


def digests(folder: Path) -> dict[str, str]:
    """Digests of what `ChatTokenizer.load` reads, by part: equal where folders give texts the same tokens.

    ConfigurationError names a file that is missing or damaged.
    """
    settings, special_tokens, stop_ids = _settings(folder)
    tokenizer = _read_json(folder / "tokenizer.json")
    for name in ("version", "padding", "truncation"):  # of the library, and of what `load` turns off
        tokenizer.pop(name, None)
    model = tokenizer.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        # Older versions of the library write a pair as one text.
        model["merges"] = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    parts = {
        "tokenizer": tokenizer,
        "chat template": _read_template(folder, settings),
        "special tokens": [special_tokens, sorted(stop_ids)],
    }
    return {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
        for name, part in parts.items()
    }


def _settings(folder: Path) -> tuple[dict[str, Any], dict[str, str], list[int]]:
    """The content of tokenizer_config.json, special tokens by their variables, and ids that end a reply."""
    settings = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | settings)
    eos_ids = _read_json(folder / "generation_config.json").get("eos_token_id")
    return settings, special_tokens, [eos_ids] if isinstance(eos_ids, int) else list(eos_ids or [])


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def _read_template(folder: Path, settings: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise ConfigurationError(
            f"no chat template in {folder}: neither chat_template.jinja nor `chat_template` in "
            "tokenizer_config.json; use an instruction-tuned model or write the template there"
        )
    return template


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Variables such as `bos_token`, each given as a string or as a serialized added token."""
    tokens: dict[str, str] = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
