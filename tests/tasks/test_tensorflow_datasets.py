"""tensorflow-datasets without TensorFlow: a small builder is prepared and read here."""

import importlib
import json
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow_datasets as tfds

from grpo_jax.config import TfdsData
from grpo_jax.tasks import build


class TinySums(tfds.core.GeneratorBasedBuilder):
    """Twenty sums."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"question": tfds.features.Text(), "answer": np.float32})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._examples(range(16)), "test": self._examples(range(16, 20))}

    def _generate_examples(self):
        raise NotImplementedError

    def _examples(self, numbers):
        for i in numbers:
            yield i, {"question": f"{i}+1=é", "answer": i + 1}


@pytest.fixture(scope="module", params=["array_record", "parquet"])
def prepared(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    TinySums(data_dir=folder, file_format=request.param).download_and_prepare()
    return str(folder), request.param


def test_reads_what_was_prepared(prepared):
    sides = build(TfdsData("tiny_sums", data_dir=prepared[0], held_out_split="test", prompt="{question}"))
    assert {(p.prompt, p.answer) for p in sides.train} == {(f"{i}+1=é", str(i + 1)) for i in range(16)}
    assert len(sides.held_out) == 4
    assert "tensorflow" not in sys.modules


def test_a_slice_is_a_slice_or_an_error(prepared):
    folder, file_format = prepared
    data = TfdsData("tiny_sums", data_dir=folder, split="train[:50%]", held_out_fraction=0)
    if file_format == "parquet":
        with pytest.raises(ValueError, match="a slice of a parquet data set would be the whole"):
            build(data)
    else:
        assert len(build(data).train) == 8


@pytest.mark.parametrize(
    "fields", [{"name": "no_such_set"}, {"split": "validation"}, {"data_dir": "/nowhere"}]
)
def test_what_is_not_there_is_one_short_error(prepared, fields):
    with pytest.raises(ValueError, match=r"data\.name: cannot read") as caught:
        build(TfdsData(**{"name": "tiny_sums", "data_dir": prepared[0], **fields}))
    assert len(str(caught.value)) < 600


def test_the_real_gsm8k_builder(tmp_path):
    """Prepared from files like the real ones, by the library's own code."""
    importlib.import_module("tensorflow_datasets.text.gsm8k")

    rows = [{"question": f"q{i}", "answer": f"reason {i}\n#### {i}"} for i in range(20)]
    for name in ("train", "test", "train_socratic", "test_socratic"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with mock.patch.object(
        tfds.download.DownloadManager,
        "download_and_extract",
        lambda self, urls: {name: str(tmp_path / f"{name}.jsonl") for name in urls},
    ):
        builder = tfds.builder("gsm8k", data_dir=tmp_path / "out", file_format="array_record")
        builder.download_and_prepare()
    # In a new process, which has not imported the builder's module.
    program = (
        "import sys; from grpo_jax.config import TfdsData; from grpo_jax.tasks import build\n"
        f"data = TfdsData('gsm8k', data_dir={str(tmp_path / 'out')!r}, answer_pattern='####(.+)')\n"
        "sides = build(data); problems = [*sides.train, *sides.held_out]\n"
        "print(sorted(int(p.answer) for p in problems), 'tensorflow' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == f"{list(range(20))} False"
