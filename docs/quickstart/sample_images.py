"""A folder of Parquet files with images in it, to try the other two scripts with: scikit-learn's digits.

python docs/quickstart/sample_images.py FOLDER
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits


def main(folder):
    """Write 1,797 PNG files and their labels, in four Parquet files."""
    digits = load_digits()
    images = []
    for pixels in digits.images:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")  # pixels are from 0 to 16
        images.append(file.getvalue())
    labels = [f"digit {label}" for label in digits.target]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for part in range(4):
        table = pa.table({"image": images[part::4], "label": labels[part::4]})
        pq.write_table(table, f"{folder}/part-{part}.parquet")


if __name__ == "__main__":
    main(sys.argv[1])
