"""A Transformers tokenizer from the fields of a GGUF file, without torch.

Transformers' own GGUF reader needs torch and loses SmolLM2's splitting of digits; this one follows
`tokenizer.ggml.pre`, which says how text is cut into words and numbers before merges apply.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from grpo_jax.models.gguf import GgufFile

CONTROL, USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type that are never split."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen cut text; they differ in how many digits go together."""


def read_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a .gguf file."""
    return build(GgufFile(path))


def build(file: GgufFile) -> PreTrainedTokenizerFast:
    """Byte-level BPE from tokens, merges and token types."""
    model = file.field("tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(
            f"{file.file_of('')} has tokenizer.ggml.model {model!r}; only gpt2 (byte-level BPE) is read"
        )
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.field("tokenizer.ggml.token_type")
    pre = file.get("tokenizer.ggml.pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in file.field("tokenizer.ggml.merges")]
    fast = Tokenizer(
        models.BPE(
            vocab={token: id for id, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre == "llama-bpe",
        )
    )
    fast.pre_tokenizer = _pre_tokenizer(pre)
    fast.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        fast.normalizer = normalizers.NFC()
    typed = list(zip(tokens, types, strict=True))
    fast.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in typed if k == CONTROL])
    fast.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in typed if k == USER_DEFINED])

    def token(name: str) -> str | None:
        id = file.get(f"tokenizer.ggml.{name}_token_id")
        return None if id is None else tokens[id]

    bos = token("bos")
    if bos and file.get("tokenizer.ggml.add_bos_token", False):
        fast.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=bos,
        eos_token=token("eos"),
        pad_token=token("padding"),
        unk_token=token("unknown"),
    )
    tokenizer.chat_template = file.get("tokenizer.chat_template")
    return tokenizer


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    if kind in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    digits = {"qwen2": "", "llama-bpe": "{1,3}"}
    if kind not in digits:
        raise ValueError(
            f"tokenizer.ggml.pre is {kind!r}; expected default, gpt-2, smollm, qwen2 or llama-bpe. Load the"
            " original tokenizer's folder instead"
        )
    words = pre_tokenizers.Split(Regex(WORDS % digits[kind]), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
