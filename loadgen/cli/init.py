"""`loadgen init`: a scenario to start from."""

from importlib import resources
from pathlib import Path

import click

from loadgen.cli.common import echo
from loadgen.errors import ConfigurationError

SCENARIO = "scenario.yaml"
SCHEMA = "scenario.schema.json"


@click.command()
@click.argument("directory", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=".")
def init(directory: Path) -> None:
    """Write a commented scenario that runs as it is, and the schema that lets editors complete it.

    Goes to DIR, or to the current directory. Never overwrites: a scenario.yaml that is there is an error, a schema
    that is there stays.
    """
    scenario = directory / SCENARIO
    if scenario.exists() or scenario.is_symlink():
        raise ConfigurationError(f"{scenario} is already there", remedy="Choose another directory: loadgen init DIR")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        new_schema = _write_new(directory / SCHEMA, resources.files("schemas").joinpath(SCHEMA).read_text("utf-8"))
        if not _write_new(scenario, resources.files("loadgen.scenario").joinpath("starter.yaml").read_text("utf-8")):
            raise ConfigurationError(f"{scenario} is already there", remedy="Choose another directory.")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {directory}: {error.strerror}", remedy="Choose another directory: loadgen init DIR"
        ) from error
    for path in [directory / SCHEMA] * new_schema + [scenario]:
        echo(f"wrote {path}")
    echo(f"next: loadgen validate {scenario} --plan", err=True)
    echo(f"      loadgen run {scenario}", err=True)


def _write_new(path: Path, text: str) -> bool:
    """Write a file that is not there yet; False when it is. A half-written one is taken away again."""
    try:
        file = path.open("x", encoding="utf-8")  # refuses links too
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True
