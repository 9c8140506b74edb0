"""Text to token ids and back: a built-in character tokenizer, and Transformers' with chat templates.

Prompts are encoded once; the ids that were sampled from are the ids trained on, so nothing here is ever asked
to encode what it has decoded. A control token that appears in the data ("<|im_end|>") stays text: only the
chat template writes control tokens.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from grpo_jax.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Prompt = str | tuple[Message, ...]


class Tokenizer(Protocol):
    """What the project needs of a tokenizer. `pad_id` may be a stop id: masks come from lengths."""

    vocab_size: int
    pad_id: int
    stop_ids: tuple[int, ...]
    control_tokens: Mapping[str, int]
    """Ids of tokens that decoded text leaves out, by how they are written."""

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids the model continues from."""

    def encode_completion(self, text: str) -> list[int]:
        """Ids of a reference answer, ending with a stop token."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of text that goes on: nothing is added."""

    def encode_reply(self, prompt: Prompt, turn_ids: Sequence[int], reply: Message) -> list[int]:
        """Ids of a message that answers a turn of the model's, up to where its next turn begins.

        In a chat they are what the template writes from the end of that turn on; in plain text, the message's content.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Text of sampled ids, without special and stop tokens."""


def load_tokenizer(
    *, kind: Literal["characters", "transformers"], path: str = "", chat: bool = False
) -> Tokenizer:
    """The tokenizer a config names; `path` is a folder, a .gguf file, package:NAME, or org/name@commit."""
    if kind == "characters":
        if chat:
            raise ValueError("tokenizer.chat is True, but the character tokenizer has no chat template")
        return CharacterTokenizer()
    if kind != "transformers":
        raise ValueError(f'tokenizer.kind is {kind!r}; expected "characters" or "transformers"')
    if not path:
        raise ValueError("tokenizer.path is empty; expected a folder, a .gguf file or a hub id")
    from grpo_jax.models.hub import locate, resolve

    path = resolve(path)
    if path.endswith(".gguf"):
        from grpo_jax.models import gguf_tokenizer

        return TransformersTokenizer(gguf_tokenizer.read_tokenizer(path), chat=chat)
    folder = locate(path, weights=False)
    return TransformersTokenizer(_from_folder(folder), chat=chat, stop_ids=generation_stop_ids(folder))


def _from_folder(folder: Path) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    if not any(
        (folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    ):
        raise ValueError(f"tokenizer.path {folder} holds no tokenizer; expected tokenizer.json in it")
    return AutoTokenizer.from_pretrained(folder)


def generation_stop_ids(folder: Path) -> tuple[int, ...]:
    """Every eos id of generation_config.json; chat models often list more than the tokenizer knows."""
    file = folder / "generation_config.json"
    if not file.exists():
        return ()
    eos = json.loads(file.read_text()).get("eos_token_id")
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


class CharacterTokenizer:
    """One id per printable ASCII character and newline, and UTF-8 bytes for all else; needs no files."""

    alphabet = "\n" + "".join(sorted(set(string.printable) - set(string.whitespace) | {" "}))
    pad_id, bos_id, eos_id = 0, 1, 2
    stop_ids = (eos_id,)
    control_tokens: Mapping[str, int] = {}  # none is written in any way
    first_byte = len(alphabet) + 3
    vocab_size = first_byte + 256

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            raise ValueError(
                "the character tokenizer has no chat template; expected a text prompt, got messages"
            )
        return [self.bos_id, *self.encode_text(prompt)]

    def encode_completion(self, text: str) -> list[int]:
        return [*self.encode_text(text), self.eos_id]

    def encode_reply(self, prompt: Prompt, turn_ids: Sequence[int], reply: Message) -> list[int]:
        return self.encode_text(reply.content)

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are not UTF-8 become U+FFFD, one for each stretch the standard decoder gives up on."""
        encoded = bytearray()
        for id in ids:
            if self.first_byte <= id < self.vocab_size:
                encoded.append(id - self.first_byte)
            elif 3 <= id < self.first_byte:
                encoded += self.alphabet[id - 3].encode()
        return encoded.decode(errors="replace")

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in text:
            known = _CHARACTER_IDS.get(character)
            ids += [self.first_byte + byte for byte in character.encode()] if known is None else [known]
        return ids


_CHARACTER_IDS = {character: index for index, character in enumerate(CharacterTokenizer.alphabet, start=3)}


class TransformersTokenizer:
    """A Transformers tokenizer behind the project's interface."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", *, chat: bool = False, stop_ids: Sequence[int] = ()
    ):
        """Stops at its eos, its template's end of turn, and `stop_ids` (those of a generation config)."""
        if chat and not tokenizer.chat_template:
            raise ValueError("tokenizer.chat is True, but this tokenizer has no chat template")
        self.tokenizer, self.chat = tokenizer, chat
        self.vocab_size = len(tokenizer)
        added = tokenizer.added_tokens_decoder.items()
        self.control_tokens = {token.content: id for id, token in added if token.special}
        self._control_pattern = re.compile(
            "|".join(map(re.escape, sorted(self.control_tokens, key=len, reverse=True)))
        )
        # A reference answer ends as the model itself would end it: with the template's token in a chat.
        own, turn = tokenizer.eos_token_id, self._end_of_turn()
        ordered = (turn, own, *stop_ids) if chat else (own, *stop_ids, turn)
        self.stop_ids = tuple(dict.fromkeys(id for id in ordered if id is not None))
        if not self.stop_ids:
            raise ValueError("this tokenizer has no end-of-sequence token, so no completion could ever stop")
        self.pad_id = self.stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return self._encode_chat(prompt)
        if self.chat:
            return self._encode_chat((Message("user", prompt),))
        return self.tokenizer.encode(prompt, split_special_tokens=True)

    def encode_completion(self, text: str) -> list[int]:
        return [*self.encode_text(text), self.stop_ids[0]]

    def encode_reply(self, prompt: Prompt, turn_ids: Sequence[int], reply: Message) -> list[int]:
        if isinstance(prompt, str) and not self.chat:
            return self.encode_text(reply.content)
        turn = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in reply.content)
        chat = (Message("user", "?"), Message("assistant", turn), reply)
        masked, spelled = self._mask_control_tokens(chat)
        _, found, rest = self._render(masked, generate=True).partition(turn)
        if not found:
            raise ValueError(
                "this tokenizer's chat template leaves out what was said before; it cannot do several turns"
            )
        ids = self._encode_pieces(rest, spelled)
        # The template ends the model's turn with a token that the model has written itself, unless a text stopped it.
        written = bool(turn_ids) and bool(ids) and turn_ids[-1] == ids[0]
        return ids[1:] if written else ids

    def decode(self, ids: Iterable[int]) -> str:
        # A model's vocabulary is often rounded up past its tokenizer's; those ids spell nothing.
        kept = [int(id) for id in ids if id not in self.stop_ids and id < self.vocab_size]
        return self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def encode_text(self, text: str) -> list[int]:
        """Ids of text with no BOS added and control tokens read as the characters they are."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the template's text. The template writes its own BOS, so the tokenizer must add none."""
        masked, spelled = self._mask_control_tokens(messages)
        text = self._render(masked, generate=True)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if not spelled:
            return ids
        # Tokenizers cut text at control tokens before anything else, so pieces encoded apart equal the whole.
        # One for which that is not so (it treats the start of a text specially) cannot be trusted with this.
        if self._encode_pieces(text, {}) != ids:
            raise ValueError(
                f"a message contains the control token {next(iter(spelled.values()))!r} and this tokenizer"
                " cannot encode it as plain text; remove it from the data"
            )
        return self._encode_pieces(text, spelled)

    def _encode_pieces(self, text: str, spelled: dict[str, str]) -> list[int]:
        """Control tokens as their ids, and the text between them, marks turned back, as plain text."""
        ids, start = [], 0
        for match in [*self._control_pattern.finditer(text), None]:
            piece = text[start : match.start() if match else len(text)]
            for mark, token in spelled.items():
                piece = piece.replace(mark, token)
            ids += self.encode_text(piece) if piece else []
            if match:
                ids.append(self.control_tokens[match.group()])
                start = match.end()
        return ids

    def _mask_control_tokens(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """The messages with private-use characters for the control tokens in them, and character -> token."""
        everything = "".join(message.content for message in messages)
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in everything)
        present = sorted(set(self._control_pattern.findall(everything))) if self.control_tokens else []
        marks = dict(zip(present, free, strict=False))
        masked = [
            Message(
                role,
                self._control_pattern.sub(lambda match: marks[match.group()], content) if marks else content,
            )
            for role, content in messages
        ]
        return masked, {mark: token for token, mark in marks.items()}

    def _render(self, messages: Iterable[Message], *, generate: bool) -> str:
        if not self.tokenizer.chat_template:
            raise ValueError("the prompt is a list of chat messages, but this tokenizer has no chat template")
        chat = [{"role": role, "content": content} for role, content in messages]
        return self.tokenizer.apply_chat_template(chat, add_generation_prompt=generate, tokenize=False)

    def _end_of_turn(self) -> int | None:
        """The control token the template writes after an assistant's message, if it writes one."""
        if not self.tokenizer.chat_template or not self.control_tokens:
            return None
        answer = "\ue000"
        text = self._render([Message("user", "?"), Message("assistant", answer)], generate=False)
        match = self._control_pattern.search(text, text.index(answer))
        return self.control_tokens[match.group()] if match else None
