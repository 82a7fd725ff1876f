"""An embedded server as a real process, for tests: started with the command that a user would type.

Works in every test environment: the server's packages may be installed in another one (LOADGEN_SERVER_PYTHON).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.copied_data import copy_data_dir
from tests.processes import PATIENCE_S, ROOT, make_reachable_directory, wait_until

READY = "listening on "


class EmbeddedServer:
    """One `loadgen embedded serve` process. `stop()` is safe to call twice."""

    password: str | None = None  # of a server that checks one: see read_password

    def __init__(self, *arguments: str, data_dir: Path | None = None) -> None:
        own_dir = make_reachable_directory()
        self._own_dir: Path | None = own_dir
        self.data_dir = data_dir or own_dir / "data"
        if data_dir is None and "null" not in arguments:
            copy_data_dir(self.data_dir, served_once)
        python = os.environ.get("LOADGEN_SERVER_PYTHON", sys.executable)
        code = "import sys; from loadgen.cli.main import main; sys.exit(main())"
        command = [python, "-P", "-c", code, "embedded", "serve", "--port", "0", "--data-dir", str(self.data_dir)]
        self.errors_path = own_dir / "stderr.txt"
        with self.errors_path.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,  # as for a server that a command starts: it may raise the session's priority
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(READY):
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"the server did not start: {line!r}\n{self.errors_path.read_text()}")
        self.host, port = line.removeprefix(READY).strip().split(":")
        self.port = int(port)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def parameters(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments for snowflake.connector.connect that any supported major accepts without a warning."""
        import snowflake.connector

        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "protocol": "http",
            "account": "embedded",
            "user": "tester",
            "password": self.password or "any",
            "paramstyle": "qmark",
            "session_parameters": {"CLIENT_TELEMETRY_ENABLED": False},
        }
        if int(snowflake.connector.__version__.split(".")[0]) >= 5:
            settings["enable_server_session_keep_alive_auto_detection"] = False
            settings["auto_cleanup"] = False  # as in the product: collecting a connection must not call the driver
        else:
            settings["platform_detection_timeout_seconds"] = 0.0
        session_parameters = settings["session_parameters"] | more.pop("session_parameters", {})
        return settings | more | {"session_parameters": session_parameters}

    def connect(self, **more: Any) -> Any:
        import snowflake.connector

        return snowflake.connector.connect(**self.parameters(**more))

    def ask(self, path: str, *, method: str = "GET", body: Any = None) -> Any:
        """One of the `/__loadgen/` paths; JSON lines come back as a list."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", method=method, data=data)
        if self.password is not None:
            pair = b64encode(f"tests:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
            if answer.headers["content-type"] == "application/x-ndjson":
                return [json.loads(line) for line in text.split("\n") if line]
        return json.loads(text)

    def read_password(self, data_dir: Path) -> None:
        """Use the password of that data directory from now on."""
        self.password = (data_dir / "password").read_text().strip()

    def now_ms(self) -> float:
        """The clock of the server, which its history and its journal use."""
        return float(self.ask("/__loadgen/stats")["now_ms"])

    def wait_server_ms(self, ms: float) -> float:
        """Waits until this much time has passed on the server's clock, and returns how much has passed."""
        began_ms = self.now_ms()
        return wait_until(lambda: (passed := self.now_ms() - began_ms) >= ms and passed, f"{ms:g} ms have passed")

    def history(self, tag: str = "", since_ms: float = 0.0) -> list[dict[str, Any]]:
        """Every statement that has ended: those with this text in their tag that began at that time or later."""
        return list(self.ask(f"/__loadgen/history?tag={quote(tag)}&since={since_ms}"))

    def model(self, warehouse: str, **model: Any) -> None:
        """Give a warehouse `slots` and a `service_time`; it keeps them."""
        self.ask("/__loadgen/warehouses", method="POST", body={"name": warehouse, **model})

    def fault(self, **rule: Any) -> None:
        self.ask("/__loadgen/faults", method="POST", body=rule)

    def inject_fault(self, count: int, **rule: Any) -> None:
        """Inject a fault, and wait until it has fired this many times."""
        self.fault(count=count, **rule)
        wait_until(
            lambda: self.ask("/__loadgen/faults")[-1]["fired"] == count, f"{rule['kind']} has struck {count} times"
        )

    def clear_faults(self) -> None:
        self.ask("/__loadgen/faults", method="DELETE")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
        return code

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def served_once(data_dir: Path) -> None:
    with EmbeddedServer(data_dir=data_dir):
        pass
