"""The reference library's part in write.py: a Spark session that caches tables and writes them on request.

Runs under the reference's interpreter. Requests and answers are lines of JSON on stdin and stdout.
"""

import json
import os
import sys
import time
import warnings

import tables


def main():
    requests = sys.stdin
    # Spark, its Python workers and the library may print: what is not an answer goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    spark = tables.make_spark(sys.argv[1])
    frames = {}
    for line in requests:
        request = json.loads(line)
        answer = None
        name, rows = request["name"], request["rows"]
        if request["do"] == "load":
            for other in [key for key in frames if key[0] != name]:
                frames.pop(other).unpersist(blocking=True)
            frames[name, rows] = tables.cached_frame(spark, name, rows)
        else:
            answer = write(frames[name, rows], name, request["path"])
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def write(frame, name, path):
    """Return the seconds that writing a DataFrame takes."""
    from streaming.base.converters import dataframe_to_mds

    options = {"out": path, "columns": tables.TABLES[name].encodings, "compression": None}
    start = time.perf_counter()
    dataframe_to_mds(frame, merge_index=True, mds_kwargs=options)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
