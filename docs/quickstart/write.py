"""Parquet files with images in them become two MDS data sets: one to train on, and one to test with.

    python docs/quickstart/write.py PARQUET DATA [--image COLUMN] [--label COLUMN]

PARQUET is a folder of Parquet files, or whatever else Spark can read as such. The column of images holds whole files:
JPEG, PNG or what else Pillow reads. Labels may be text or numbers. DATA gets the folders train and test, and
classes.json, a list of the labels.
"""

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql import types as T

import mds_spark

sys.path.append(str(Path(__file__).parents[2] / "notebooks"))
from local_spark import start_spark


def main(parquet, data, image, label, spark):
    mds_spark.register(spark)
    df = spark.read.parquet(parquet).select(F.col(image).alias("image"), F.col(label).cast("string").alias("name"))
    kind = df.schema["image"].dataType
    if isinstance(kind, T.StructType) and "bytes" in kind.names:  # as Hugging Face's data sets have it
        df = df.withColumn("image", F.col("image.bytes"))
    elif not isinstance(kind, T.BinaryType):
        raise SystemExit(f"--image {image}: expected a binary column of whole image files, found {kind.simpleString()}")
    df = df.dropna()
    classes = sorted(row["name"] for row in df.select("name").distinct().collect())
    # The label is the name's place in the list of all.
    place = F.array_position(F.array(*map(F.lit, classes)), F.col("name")) - 1
    df = df.withColumn("label", place.cast("int"))
    # Which rows are held out depends on the image alone, so that each run holds out the same.
    held_out = F.abs(F.xxhash64("image")) % 10 == 0
    for split, rows in (("train", df.filter(~held_out)), ("test", df.filter(held_out))):
        rows.write.format("mds").mode("overwrite").save(f"{data}/{split}")
        print(f"{split}: {spark.read.format('mds').load(f'{data}/{split}').count()} images")
    Path(data, "classes.json").write_text(json.dumps(classes))
    print(f"{len(classes)} classes: {', '.join(classes[:10])}{' ...' if len(classes) > 10 else ''}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parquet")
    parser.add_argument("data")
    parser.add_argument("--image", default="image", help="the column of images (default: image)")
    parser.add_argument("--label", default="label", help="the column of labels (default: label)")
    arguments = parser.parse_args()
    main(arguments.parquet, arguments.data, arguments.image, arguments.label, start_spark())
