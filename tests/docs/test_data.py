"""The scripts of docs/data: what each claims to have read is what it has written."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle

sys.path.append(str(Path(__file__).parents[2] / "docs" / "data"))
import audio
import images
import mixed
import text
import tokens
import video

DATA = Path(images.__file__).parent
# Run as a script, its functions travel to Spark's workers by value; so they do from here, where workers lack the path.
cloudpickle.register_pickle_by_value(tokens)


def test_images(spark: Any, tmp_path: Path) -> None:
    told = images.main(tmp_path, spark)
    assert sorted(told["ids"]) == list(range(300))
    assert told["ids"] != sorted(told["ids"])
    assert told["accuracies"][-1] > 0.8


def test_text(spark: Any, tmp_path: Path) -> None:
    told = text.main(tmp_path, spark)
    rows = text.make_rows()
    assert sorted(told["ids"]) == list(range(len(rows)))
    assert told["characters"] == sum(len(paragraph) for _, paragraph, _ in rows)
    assert told["losses"][-1] < 0.7 * told["losses"][0]


def test_tokens(spark: Any, tmp_path: Path) -> None:
    padded, while_loading, in_spark = tokens.main(tmp_path, spark).values()
    count = sum(len(document) for (document,) in tokens.make_rows(600))
    assert [padded["tokens"], while_loading["tokens"], in_spark["tokens"]] == [count] * 3
    assert padded["padding"] > 0.2 > 0.1 > while_loading["padding"] > in_spark["padding"]
    # The same documents make the same loss, however they lie: they do not see each other.
    np.testing.assert_allclose(padded["losses"], while_loading["losses"], rtol=1e-3)
    assert in_spark["losses"][-1] < 0.7 * in_spark["losses"][0]


def test_audio(spark: Any, tmp_path: Path) -> None:
    told = audio.main(tmp_path, spark)
    assert sorted(told["heard"]) == list(range(240))
    for number, hz in told["heard"].items():
        assert hz == pytest.approx(audio.HZ[number % 12], abs=audio.RATE / audio.POINTS)
    assert told["losses"][-1] < 0.7 * told["losses"][0]


def test_video(spark: Any, tmp_path: Path) -> None:
    told = video.main(tmp_path, spark)
    assert told["frames"] == {number: 8 + number % 5 for number in range(160)}
    assert told["accuracies"][-1] > 0.9


def test_a_decoded_clip_looks_like_the_one_that_was_encoded() -> None:
    pixels = np.zeros((video.FRAMES, video.SIDE, video.SIDE), np.uint8)
    for number, frame in enumerate(pixels):
        frame[8:20, 6 * number : 6 * number + 12] = 200
    clip = video.decode({"id": 0, "clip": video.encode(pixels), "goes_right": 1})["clip"]
    assert np.abs(clip[0].numpy() * 255 - pixels).mean() < 3


def test_mixed(spark: Any, tmp_path: Path) -> None:
    told = mixed.main(tmp_path, spark)
    rows = list(mixed.make_rows(600))
    assert sorted(told["ids"]) == list(range(600))
    assert told["captions"] == Counter(caption for _, _, caption, _, _ in rows)
    assert told["tags"] == Counter(tag for *_, meta in rows for tag in meta.tags)
    assert told["losses"][-1] < 0.8 * told["losses"][0]


def test_each_script_has_a_page_that_shows_it() -> None:
    index = (DATA / "index.md").read_text()
    for script in DATA.glob("*.py"):
        assert f'--8<-- "docs/data/{script.name}"' in script.with_suffix(".md").read_text()
        assert f"({script.stem}.md)" in index
