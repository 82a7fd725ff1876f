"""Homes with files of connections."""

from __future__ import annotations

from pathlib import Path

from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile

PASSWORD = "planted-Passw0rd-7193"
NOWHERE = Path("/nonexistent/token")


class Home:
    """A user's home folder with real files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / ".snowflake"
        self.folder.mkdir()
        self.environ = {"HOME": str(path)}

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def find(self, name: str | None = None, **variables: str) -> ConnectionProfile:
        return find_profile(name, environ={**self.environ, **variables}, spcs_token_file=NOWHERE)


def section(name: str, **values: str) -> str:
    fields = {"account": "myorg-acct", "user": "ann", "password": PASSWORD} | values
    return "\n".join([f"[{name}]", *(f'{key} = "{value}"' for key, value in fields.items()), ""])
