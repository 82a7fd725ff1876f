"""`loadgen schema`: the JSON Schema of scenario files."""

from importlib import resources

import click

from loadgen.cli.common import echo


@click.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors and other tools.

    Editors that know the YAML language server complete and check a file whose first line is

    \b
      # yaml-language-server: $schema=./scenario.schema.json
    """
    echo(resources.files("schemas").joinpath("scenario.schema.json").read_text("utf-8"), nl=False)
