"""A byte-level tokenizer of about three hundred ids, and two chat templates written for the tests."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header|>", "<|end_header|>", "<|eot|>")
BOS, EOS, IM_START, IM_END, HEADER, END_HEADER, EOT = range(7)

QWEN_STYLE = """\
{%- if messages[0]['role'] != 'system' -%}
<|im_start|>system
Be brief.<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

LLAMA_STYLE = """\
{{- bos_token -}}
{%- for message in messages -%}
<|start_header|>{{ message['role'] }}<|end_header|>

{{ message['content'] | trim }}<|eot|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start_header|>assistant<|end_header|>

{% endif -%}
"""


def build(*, template: str | None = None, eos: str = "</s>", pad: str | None = "</s>", adds_bos: bool = True):
    """Bytes, the merges of "hello", and control tokens; like Llama's it puts a BOS before plain text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    tokens = [*CONTROL, *alphabet, *("".join(pair) for pair in merges)]
    fast = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    if adds_bos:
        fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token=eos, pad_token=pad)
    tokenizer.chat_template = template
    return tokenizer


def save(folder: Path, **options) -> Path:
    build(**options).save_pretrained(folder)
    return folder
