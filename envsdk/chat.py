"""Chat templates for token-in-token-out: what to append to a token log, turn by turn.

    first_prompt -> (engine samples a reply) -> next_prompt -> (reply) -> next_prompt -> ...

A template renders whole conversations; a token log only grows. `next_prompt` is therefore the cut of
a rendered conversation behind a reply, found once with sentinels, so that history is never rendered or
tokenized again. As long as the replies are what the tokenizer itself would have written, the log equals
the tokens of the whole conversation.

    chat = ChatTokenizer.load(Path("model"))
    log.append_prompt(chat.first_prompt(system="You play a game.", user="_ P G"))
    log.append_sampled(...)
    log.append_prompt(chat.next_prompt(user="_ _ P", reply_closed=True))

Needs `tokenizers` and `jinja2` only: workers that play episodes never load transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from tokenizers import Encoding, Tokenizer

from envsdk.failures import ConfigurationError, without_lone_surrogates

# Each text is tokenized on the thread that asks: a pool in every worker would only take the engines' cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_REPLY = "envsdkreplysentinel"
_USER = "envsdkusersentinel"

# What an observation may do to its surroundings: be empty, start or end in white space, digits or letters
# that merge with a neighbor, contain markup, not be ASCII.
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

_SUSPICIOUS_CHARS = 16
"""Characters per token of room above which a text is counted slice by slice before it is tokenized."""
_SLICE_CHARS = 1 << 14

Message = Mapping[str, Any]
"""A template's message: `role`, `content` and whatever else the template reads, such as `tool_calls`."""


class TooManyTokens(Exception):
    """A text is far too long for the room there is, which its beginning shows already."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"its beginning alone has {num_tokens} tokens")
        self.num_tokens = num_tokens
        """Of its beginning: all that was counted."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """`next_prompt` as constants around the observation; the ids are those before and behind `text`."""

    head_ids: list[int]
    text_before: str
    text_behind: str
    tail_ids: list[int]
    strips_left: bool
    strips_right: bool


class ChatTokenizer:
    """A tokenizer with its chat template. Stateless after loading: share one between all episodes."""

    stop_token_ids: tuple[int, ...]
    """Tokens that end a reply; the template's own end-of-turn token is the first."""
    vocab_size: int
    """Number of token ids, added tokens included; a model's embedding may be padded beyond it."""
    num_ids: int
    """One more than the highest token id: what a model needs embeddings for."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """`special_tokens` are the template's variables (`bos_token` ...). The usual way in is `load`."""
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._template = _compile(chat_template)
        self._variables = dict(special_tokens or {})
        self._added = {
            token.content: (token_id, token)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._markup = _markup(text for text, (_, token) in self._added.items() if token.special)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.num_ids = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

        behind_reply = self._render_behind_reply(_USER)
        self._end_of_turn_ids = self._find_end_of_turn(behind_reply, stop_token_ids)
        self.stop_token_ids = tuple(dict.fromkeys([*self._end_of_turn_ids[-1:], *stop_token_ids]))
        cut = self._find_cut(behind_reply)
        cut_is_exact = cut and all(
            self._join(cut, probe) == self._render_next_ids(probe) for probe in _PROBES
        )
        self._cut = cut if cut_is_exact else None

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Read a Hugging Face folder. ConfigurationError names the file that is missing or damaged."""
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

        settings = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | settings)
        eos_ids = _read_json(folder / "generation_config.json").get("eos_token_id")
        stop_ids = [eos_ids] if isinstance(eos_ids, int) else list(eos_ids or [])
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
        room: int | None = None,
    ) -> list[int]:
        """Tokens of the first turn, generation prompt included; no system message when `system` is empty.

        `tools` are the functions the policy may call, as OpenAI's protocol describes them. What `user` says
        is text: see `without_markup`. `room` as in `encode`.
        """
        self._check_room(user, room)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self.without_markup(user)})
        try:
            return self.encode(self.render(messages, tools=tools))
        except jinja2.TemplateError as error:
            raise ConfigurationError(
                f"the model's chat template refuses the prompt: {error}; "
                "a template without a system role needs an empty `agent_system_template`"
            ) from error

    def next_prompt(self, *, user: str, reply_closed: bool, room: int | None = None) -> list[int]:
        """Tokens from the end of a sampled reply to the next one.

        `reply_closed` says that the reply's last token was a stop token, which is then not written
        again; a reply that was cut off (`length`, `abort`) is closed first. What `user` says is text: see
        `without_markup`. `room` as in `encode`.
        """
        self._check_room(user, room)
        user = self.without_markup(user)
        ids = self._render_next_ids(user) if self._cut is None else self._join(self._cut, user)
        return ids[len(self._end_of_turn_ids) :] if reply_closed else ids

    def without_markup(self, text: str) -> str:
        """`text` with special tokens that it spells out parted by a space: `< |im_end|>`.

        Else an observation could end its own message and speak for somebody else.
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
        tools: Sequence[Mapping[str, Any]] | None = None,
        room: int | None = None,
    ) -> list[int]:
        """Tokens from the end of the reply `messages[index]` to the next one, whatever stands between them.

        `reply_closed` as in `next_prompt`, `room` as in `encode`. Raises jinja2.TemplateError where the
        template refuses these messages, or where what it writes cannot be cut behind that reply.
        """
        marked = [*messages[:index], {"role": "assistant", "content": _REPLY}, *messages[index + 1 :]]
        _, found, behind = self.render(marked, tools=tools).partition(_REPLY)
        if not found or _REPLY in behind:
            raise jinja2.TemplateError("it does not write an assistant's message exactly once, as it stands")
        ids = self.encode(behind, room=room)
        num_closing = len(self._end_of_turn_ids)
        if ids[:num_closing] != self._end_of_turn_ids:
            raise jinja2.TemplateError("it ends this reply in another way than others")
        return ids[num_closing:] if reply_closed else ids

    def reply(self, text: str) -> list[int]:
        """Tokens of a whole reply, closed as the policy should close it: for demonstrations."""
        return self.encode(text) + list(self._end_of_turn_ids or self.stop_token_ids[:1])

    def is_closed(self, reply_ids: Sequence[int]) -> bool:
        """Whether a sampled reply ended with a stop token."""
        return len(reply_ids) > 0 and int(reply_ids[-1]) in self.stop_token_ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text, without special tokens unless asked for."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def encode(self, text: str, *, room: int | None = None) -> list[int]:
        """Tokens of a text as it stands: special tokens are read, none is added.

        A lone surrogate, which UTF-8 cannot hold, counts as U+FFFD. Other threads run meanwhile. Raises
        TooManyTokens where the text is certainly longer than `room` tokens by so much that tokenizing all of
        it would be a waste; a text that is a little longer is returned.
        """
        self._check_room(text, room)
        return list(self._encoding(text).ids)

    def _check_room(self, text: str, room: int | None) -> None:
        if room is None or len(text) <= max(_SUSPICIOUS_CHARS * room, _SLICE_CHARS):
            return
        count = 0
        for start in range(0, len(text), _SLICE_CHARS):
            count += len(self._encoding(text[start : start + _SLICE_CHARS]))
            # A cut makes a few tokens of one, never twice as many.
            if count > 2 * room + _SLICE_CHARS:
                raise TooManyTokens(count)

    def _encoding(self, text: str) -> Encoding:
        # Of the library's ways to tokenize, the one for batches gives way to other threads.
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
        """The whole conversation as the template writes it; `tools` are the functions the policy may call.

        Raises jinja2.TemplateError, whatever goes wrong in the template.
        """
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
        except Exception as error:  # a template is a program of somebody else's
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error

    def _render_behind_reply(self, user: str) -> str:
        """The text from the end of a reply to the next one, by rendering a conversation around it."""
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

    def _render_next_ids(self, user: str) -> list[int]:
        return self.encode(self._render_behind_reply(user))

    def _join(self, cut: _Cut, user: str) -> list[int]:
        if cut.strips_left:
            user = user.lstrip()
        if cut.strips_right:
            user = user.rstrip()
        text = cut.text_before + user + cut.text_behind
        return [*cut.head_ids, *self.encode(text), *cut.tail_ids]

    def _find_end_of_turn(self, behind_reply: str, stop_token_ids: Sequence[int]) -> list[int]:
        """Tokens that close a reply: through the first added token, if it follows at once or is a stop."""
        before, _, _ = behind_reply.partition(_USER)
        for position in range(len(before)):
            token = self._added_token_at(before, position)
            if token is not None:
                closes = position == 0 or self._added[token][0] in stop_token_ids
                return self.encode(before[: position + len(token)]) if closes else []
        return []

    def _find_cut(self, behind_reply: str) -> _Cut | None:
        """Constants of `next_prompt`: added tokens split a text, so what lies beyond one never changes.

        None when the template rewrites the observation; each turn then renders it.
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
        return _Cut(
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
    """Matches what special tokens spell; those that begin or end in a space would not be parted by one."""
    texts = [text for text in special_tokens if len(text) > 1 and text == text.strip()]
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant wrote; here it is rendered like any other text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(chat_template: str) -> jinja2.Template:
    """Compile as transformers does: same sandbox, white space rules, filters and globals."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(chat_template)


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
    """`bos_token` and the like, each given as a string or as a serialized added token."""
    tokens: dict[str, str] = {}
    for name, value in settings.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
